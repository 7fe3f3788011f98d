"""Items that processes claim by files: order, needs, failures, losses; everything in this process but a few kills."""

import threading
from collections.abc import Sequence
from graphlib import CycleError
from pathlib import Path

import pytest

from tests.support.toy_job import ToyJob, command_at
from toolkit.work.claims import BrokenError, Claims, Item, StoppedError, work_on


def keys_of(claims: Claims, number: int) -> list[str]:
    """Items that one process does, up to so many."""
    found = list[str]()
    for _ in range(number):
        item = claims.claim()
        assert item is not None
        found.append(item.key)
        claims.end(item)
    return found


def job_of(folder: Path, *items: Item) -> ToyJob:
    job = ToyJob(folder, items)
    job.folder.mkdir(exist_ok=True)
    return job


def grouped(*groups: str, num: int = 2) -> list[Item]:
    return [Item(f"{group}{number}", group=group) for group in groups for number in range(num)]


def graph(**needs: str) -> list[Item]:
    """Items by key, each with the letters of those that it needs."""
    return [Item(key, needs=tuple(given)) for key, given in needs.items()]


def test_every_item_is_done_once(tmp_path: Path) -> None:
    job = job_of(tmp_path, *grouped("a", "b", "c"))
    work_on(job)
    assert job.done == {item.key for item in job.items}
    work_on(job)
    assert [len(job.attempts(item.key)) for item in job.items] == [1] * 6


def test_a_process_stays_with_its_group_and_begins_one_that_nobody_has(tmp_path: Path) -> None:
    job = job_of(tmp_path, *grouped("a", "b", num=4))
    one, other = Claims(job), Claims(job)
    first, second = one.claim(), other.claim()
    assert first is not None
    assert second is not None
    assert (first.key, second.key) == ("a0", "b0")
    one.end(first)
    assert keys_of(one, 3) == ["a1", "a2", "a3"]
    assert keys_of(one, 3) == ["b1", "b2", "b3"]


def test_where_all_groups_are_at_work_the_longest_queue_is_helped(tmp_path: Path) -> None:
    job = job_of(tmp_path, *grouped("a", num=2), *grouped("b", num=3))
    for _ in range(2):
        assert Claims(job).claim() is not None
    third = Claims(job).claim()
    assert third is not None
    assert third.key == "b1"


def test_what_a_process_does_no_other_one_gets(tmp_path: Path) -> None:
    job = job_of(tmp_path, *grouped("a", num=3))
    processes, found = [Claims(job) for _ in range(3)], list[Item | None]()
    assert [item and item.key for item in [each.claim() for each in processes]] == ["a0", "a1", "a2"]
    waiting = threading.Thread(target=lambda: found.append(Claims(job).claim()))
    waiting.start()
    waiting.join(1)
    assert found == []
    processes[1].release()
    waiting.join(60)
    assert [item and item.key for item in found] == ["a1"]


def test_items_of_one_claim_are_done_by_one_process(tmp_path: Path) -> None:
    job = job_of(
        tmp_path, *(Item(f"{group}{number}", group=group, claim=str(number)) for group in "ab" for number in (0, 1))
    )
    one, other = Claims(job), Claims(job)
    assert keys_of(one, 1) == ["a0"]
    assert keys_of(other, 2) == ["a1", "b1"]
    assert keys_of(one, 1) == ["b0"]


def test_an_item_waits_for_what_it_needs(tmp_path: Path) -> None:
    """A trunk, two branches, a leaf of both, declared from its end; what is not among the items is there already."""
    assert keys_of(Claims(job_of(tmp_path, *graph(d="bc", c="a", b="a", a="z"))), 4) == ["a", "c", "b", "d"]


def test_a_claim_is_given_up_while_its_items_wait_for_others(tmp_path: Path) -> None:
    items = Item("a", claim="x"), Item("b", claim="x", needs=("c",)), Item("c", claim="y")
    assert keys_of(Claims(job_of(tmp_path, *items)), 3) == ["a", "c", "b"]


def test_a_failure_stops_only_what_needs_it(tmp_path: Path) -> None:
    items = [Item("b", "raise", needs=("a",)), *graph(a="", c="a", d="bc", e="d", f="c")]
    job = job_of(tmp_path, *items)
    work_on(job)
    assert job.done == {"a", "c", "f"}
    assert job.failures == {
        "b": "a file is broken",
        "d": "it needs b, which has failed",
        "e": "it needs d, which has failed",
    }
    assert {file.name: file.read_text() for file in (tmp_path / "failed").iterdir()} == {"b": "a file is broken"}


@pytest.mark.parametrize("others", [[], ["another command"]])
def test_the_next_command_tries_again_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: Sequence[str]
) -> None:
    job = job_of(tmp_path, Item("a", "raise"), Item("b"))
    for number in (1, 2):
        with command_at(tmp_path) as command, command.locked():
            if number == 2:
                monkeypatch.setattr(type(command), "others", lambda self: others)
            command.join("key", otherwise="another key")
        work_on(job)
        assert len(job.attempts("a")) == number
    assert len(job.attempts("b")) == 1


def test_a_bug_ends_the_process_behind_its_item(tmp_path: Path) -> None:
    job = job_of(tmp_path, Item("a", "break"), Item("b"))
    with pytest.raises(BrokenError):
        work_on(job)
    assert job.failures["a"].startswith("RuntimeError: a bug\nTraceback")
    work_on(job)
    assert job.done == {"b"}


def test_what_was_asked_to_stop_is_free_and_has_not_failed(tmp_path: Path) -> None:
    job = job_of(tmp_path, Item("a", "stop"))
    for _ in range(3):
        with pytest.raises(StoppedError):
            work_on(job)
    assert job.failures == {}
    work_on(ToyJob(tmp_path, [Item("a")]))
    assert job.done == {"a"}


def lose(job: ToyJob, reason: str | None = None) -> None:
    """Begin the first item, and end as a process does that is killed."""
    claims = Claims(job)
    assert claims.claim() is not None
    claims.release()
    if reason is not None:
        (mark,) = job.folder.glob("*.begun")
        assert claims.lose(mark.read_text().splitlines()[-1], reason) == job.items[0].key


def test_an_item_that_is_lost_twice_has_failed_until_the_next_command(tmp_path: Path) -> None:
    job = job_of(tmp_path, Item("a"))
    lose(job, "signal 9 (SIGKILL)")
    lose(job, "exit code 7")
    work_on(job)
    assert job.failures == {"a": "its worker ended 2 times, last time by exit code 7"}
    with command_at(tmp_path) as command, command.locked():
        command.join("key", otherwise="another key")
    lose(job)
    work_on(job)
    assert job.done == {"a"}


def test_a_command_that_is_killed_says_nothing_of_its_item(tmp_path: Path) -> None:
    """Nor where others live: jobs that are preempted are no fault of the item."""
    job = job_of(tmp_path, Item("a"))
    for _ in range(3):
        lose(job)
    work_on(job)
    assert job.done == {"a"}


def test_a_loss_counts_though_another_process_has_begun_the_item_since(tmp_path: Path) -> None:
    job = job_of(tmp_path, Item("a"))
    lose(job)
    (mark,) = job.folder.glob("*.begun")
    mark.write_text(f"machine 1\n{mark.read_text()}")
    assert Claims(job).lose("machine 1", "exit code 7") == "a"
    assert mark.read_text().splitlines()[-1].endswith("exit code 7")


def test_what_is_done_though_its_process_was_killed_is_not_done_again(tmp_path: Path) -> None:
    job = job_of(tmp_path, Item("a"))
    lose(job)
    (tmp_path / "done" / "a").write_text("done")
    work_on(job)
    assert job.attempts("a") == []


def test_items_that_wait_for_one_another_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(CycleError):
        Claims(job_of(tmp_path, *graph(a="b", b="a")))


def test_two_items_of_one_key_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="two items have one key"):
        Claims(job_of(tmp_path, Item("a"), Item("a")))


def test_keys_may_hold_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyJob, "is_done", lambda self, item: False)
    keys = ["a/b", "a_b", "a" * 300, "a" * 301, "ä b"]
    assert keys_of(Claims(job_of(tmp_path, *map(Item, keys))), 5) == keys
