"""Where a rank is, from the stacks of its threads; and how long it has waited there."""

import threading
from types import SimpleNamespace

import pytest

from toolkit.engine import stalls
from toolkit.engine.stalls import StallClock, place, place_of_rank

_GLOO = ("/site-packages/torch/distributed/distributed_c10d.py", 3000, "all_reduce")
_STEP = ("/x/toolkit/engine/engine.py", 120, "train_step")
_NEXT = [
    ("/usr/lib/concurrent/futures/_base.py", 450, "result"),
    ("/x/toolkit/training/steps_ahead.py", 60, "steps_ahead"),
]
_IDLE = [("/usr/lib/concurrent/futures/thread.py", 80, "_worker")]
_BUILDING = [("/x/toolkit/data/corpus/shards.py", 7, "read"), ("/x/toolkit/training/steps_ahead.py", 90, "_agree")]
_GATHERING = [_GLOO, ("/x/toolkit/engine/ranks.py", 99, "_gather_numbers"), *_BUILDING[1:]]


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.setattr(stalls, "_SOURCE", "/x/")


@pytest.mark.parametrize(
    ("main", "others", "expected"),
    [
        ([_GLOO, _STEP], [], ""),
        ([("/x/toolkit/engine/ranks.py", 90, "sum_with_flags"), _STEP], [], ""),
        ([("/x/toolkit/model/layers.py", 5, "forward"), _STEP], [], "is at toolkit/model/layers.py:5 in forward"),
        # Outside of a step ranks may wait for as long as it takes.
        ([_GLOO, ("/x/toolkit/engine/ranks.py", 120, "gather")], [], "is at toolkit/engine/ranks.py:120 in gather"),
        (_NEXT, [_IDLE, _GATHERING], ""),
        (_NEXT, [_IDLE, _BUILDING], "is at toolkit/data/corpus/shards.py:7 in read"),
        # A step that is built meanwhile says nothing of one that is trained.
        ([_GLOO, _STEP], [_BUILDING], ""),
        ([("/lib/python/json.py", 3, "dumps")], [], "is at /lib/python/json.py:3 in dumps"),
    ],
)
def test_a_rank_waits_or_is_somewhere(main, others, expected):
    assert place(main, others) == expected


def test_the_stacks_are_those_of_this_process():
    found = []
    thread = threading.Thread(target=lambda: found.append(place_of_rank()))
    thread.start()
    thread.join()
    assert found[0].startswith("is at ")
    assert " in " in found[0]


def test_a_rank_has_stalled_where_it_waits_without_another_collective(monkeypatch):
    now, count, where = [0.0], [1], [""]
    group = type("Group", (), {"_get_sequence_number_for_group": lambda self: count[0]})()
    monkeypatch.setattr(stalls, "distributed_c10d", SimpleNamespace(_world=SimpleNamespace(pg_names={group: "0"})))
    monkeypatch.setattr(stalls.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(stalls, "place_of_rank", lambda: where[0])
    monkeypatch.setenv("DEEPSPEED_TIMEOUT", "1")
    clock = StallClock()
    assert not clock.has_stalled()
    now[0] = 53.0
    assert not clock.has_stalled()
    now[0] = 55.0
    assert clock.has_stalled()
    where[0] = "is at work"
    assert not clock.has_stalled()
    where[0], count[0] = "", 2
    assert not clock.has_stalled()
