"""The loop over items, with workers that are scripted."""

from collections import deque
from graphlib import CycleError

import pytest

from tests.support.shares import Share
from toolkit.execution import scheduling
from toolkit.execution.scheduling import next_item, run_work
from toolkit.execution.work import Failed, Finished, Lost, Work


def items_of(*groups, num=2, alike=False):
    """Items 'a 0', 'a 1', ... of each group; those of one number share a claim if they are alike."""
    return [
        Work(f"{group} {number}", None, group, claim=str(number) if alike else "")
        for group in groups
        for number in range(num)
    ]


class Scripted:
    """Ends the item that began first; `ends` says how, one word for each attempt."""

    def __init__(self, num_workers, ends=None):
        self.workers, self._ends = range(num_workers), {key: deque(words) for key, words in (ends or {}).items()}
        self._running, self.began = deque(), []

    def start(self, worker, work):
        assert worker not in {busy for busy, _ in self._running}
        self._running.append((worker, work.key))
        self.began.append((worker, work.key))

    def wait(self, seconds):
        if not self._running:
            return []
        worker, key = self._running.popleft()
        words = self._ends.get(key)
        match words.popleft() if words else "finished":
            case "lost":
                return [Lost(worker, key, "signal 9 (SIGKILL)")]
            case "failed":
                return [Failed(worker, key, "broken")]
        return [Finished(worker, key)]

    def close(self):
        pass


class Told:
    def __init__(self):
        self.events = []

    def on_start(self, worker, key):
        pass

    def on_event(self, event):
        self.events.append((type(event).__name__, event.key))

    def on_look(self):
        pass


def run(items, executor, share=None):
    observer, share = Told(), share or Share()
    failed = run_work(items, executor, share=share, observer=observer)
    assert share.claimed == []
    return failed, observer.events


def test_every_item_runs_once():
    items = items_of("a", "b", "c", num=3)
    failed, events = run(items, Scripted(2))
    assert failed == {}
    assert sorted(events) == sorted(("Finished", item.key) for item in items)


def test_a_worker_stays_with_its_group():
    executor = Scripted(2)
    run(items_of("a", "b", num=4), executor)
    assert {key[0] for worker, key in executor.began if worker == 0} == {"a"}
    assert {key[0] for worker, key in executor.began if worker == 1} == {"b"}


def test_an_idle_worker_takes_what_nobody_has_then_the_longest_queue():
    items = [*items_of("a", num=2), *items_of("b", num=3), *items_of("c", num=1)]
    assert next_item(items, {0: "a"}, 1).group == "b"
    assert next_item(items, {0: "a", 1: "c"}, 0).group == "a"
    assert next_item(items[:5], {0: "a", 1: "b", 2: "c"}, 2).group == "b"


def test_a_lost_workers_item_is_started_again():
    executor = Scripted(1, {"a 0": ["lost"]})
    failed, events = run(items_of("a"), executor)
    assert failed == {}
    assert executor.began == [(0, "a 0"), (0, "a 0"), (0, "a 1")]
    assert events == [("Lost", "a 0"), ("Finished", "a 0"), ("Finished", "a 1")]


def test_an_item_that_loses_its_worker_twice_has_failed():
    executor = Scripted(2, {"a 0": ["lost", "lost"]})
    failed, events = run(items_of("a"), executor)
    assert failed == {"a 0": "its worker ended 2 times, last time by signal 9 (SIGKILL)"}
    assert sorted(events) == [("Failed", "a 0"), ("Finished", "a 1"), ("Lost", "a 0")]


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_a_failure_stops_nothing_else(num_workers):
    executor = Scripted(num_workers, {"a 1": ["failed"]})
    failed, events = run(items_of("a", "b"), executor)
    assert failed == {"a 1": "broken"}
    assert len(events) == 4


def test_items_of_one_claim_are_run_by_one_worker_one_after_another():
    executor = Scripted(2, {"b 1": ["lost"]})
    failed, events = run(items_of("a", "b", "c", alike=True), executor)
    assert failed == {}
    for number, worker in (("0", 0), ("1", 1)):
        assert {began[0] for began in executor.began if began[1].endswith(number)} == {worker}
    assert sorted(events) == sorted(
        [("Lost", "b 1"), *(("Finished", f"{group} {number}") for group in "abc" for number in (0, 1))]
    )


def test_what_another_command_runs_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(scheduling, "_SECONDS_BETWEEN_CLAIMS", 0.0)
    executor = Scripted(1)
    failed, _ = run(items_of("a"), executor, Share(taken=["a 0", "a 0"]))
    assert failed == {}
    assert sorted(executor.began) == [(0, "a 0"), (0, "a 1")]


def test_what_another_command_has_ended_is_not_run():
    executor = Scripted(1)
    failed, events = run(items_of("a", num=3), executor, Share(ended={"a 0": Finished, "a 2": Failed}))
    assert executor.began == [(0, "a 1")]
    assert failed == {"a 2": "broken"}
    assert sorted(events) == [("Failed", "a 2"), ("Finished", "a 0"), ("Finished", "a 1")]


def test_a_claim_is_free_once_its_failure_is_told():
    """Another command that has the claim then finds what the observer wrote."""
    share, claimed = Share(), []

    class Keeper(Told):
        def on_event(self, event):
            claimed.append((type(event), event.key in share.claimed))

    run_work(items_of("a"), Scripted(1, {"a 1": ["failed"]}), share=share, observer=Keeper())
    assert claimed == [(Finished, True), (Failed, True)]
    assert share.claimed == []


def test_the_claim_of_a_worker_that_is_gone_is_free_for_another():
    class Leaving(Scripted):
        """Its first worker is not there any more once it has ended an item."""

        @property
        def workers(self):
            return [1] if self.began else [0]

        @workers.setter
        def workers(self, _):
            pass

    executor = Leaving(2)
    failed, _ = run(items_of("a", "b", num=1, alike=True), executor)
    assert failed == {}
    assert executor.began == [(0, "a 0"), (1, "b 0")]


def graph(**needs):
    """Items by key, each with the letters of those that it needs."""
    return [Work(key, None, needs=tuple(given)) for key, given in needs.items()]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_an_item_runs_once_what_it_needs_has_finished(num_workers):
    """A trunk, two branches, a leaf of both; declared from its end. What is not among the items is there already."""
    executor = Scripted(num_workers)
    failed, events = run(graph(d="bc", c="a", b="a", a="z"), executor)
    assert failed == {}
    assert [key for _, key in executor.began] == ["a", "c", "b", "d"]
    assert [key for _, key in events] == ["a", "c", "b", "d"]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_failure_stops_only_what_waits_for_it(num_workers):
    executor = Scripted(num_workers, {"b": ["failed"]})
    failed, events = run(graph(a="", b="a", c="a", d="bc", e="d", f="c"), executor)
    assert failed == {
        "b": "broken",
        "d": "it needs b, which has failed",
        "e": "it needs d, which has failed",
    }
    assert sorted(events) == [*(("Failed", key) for key in "bde"), *(("Finished", key) for key in "acf")]
    assert sorted(key for _, key in executor.began) == ["a", "b", "c", "f"]


def test_a_lost_item_is_waited_for():
    executor = Scripted(2, {"a": ["lost"]})
    assert run(graph(a="", b="a"), executor)[0] == {}
    assert [key for _, key in executor.began] == ["a", "a", "b"]


def test_a_claim_is_given_up_while_its_items_wait_for_others():
    items = [Work("a", None, claim="x"), Work("b", None, claim="x", needs=("c",)), Work("c", None, claim="y")]
    executor = Scripted(1)
    assert run(items, executor)[0] == {}
    assert [key for _, key in executor.began] == ["a", "c", "b"]


def test_what_another_command_has_ended_is_no_longer_waited_for():
    executor = Scripted(1)
    share = Share(ended={"a": Finished, "c": Failed})
    failed, _ = run(graph(a="", b="a", c="", d="c"), executor, share)
    assert failed == {"c": "broken", "d": "it needs c, which has failed"}
    assert [key for _, key in executor.began] == ["b"]


def test_items_that_wait_for_one_another_are_a_mistake():
    with pytest.raises(CycleError):
        run(graph(a="b", b="a"), Scripted(1))


def test_two_items_of_one_key_are_a_mistake():
    """What needs it would begin once the first of them has finished."""
    with pytest.raises(AssertionError, match="two items have one key"):
        run([Work("a", None), Work("a", None), Work("b", None, needs=("a",))], Scripted(2))
