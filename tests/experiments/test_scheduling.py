"""The loop over cells, with workers that are scripted."""

from collections import deque

import pytest

from tests.support.shares import Share
from toolkit.experiments import Cell, Job, run_cells, scheduling
from toolkit.experiments.scheduling import Failed, Finished, Lost, next_cell


def cells_of(*tasks, num=2):
    return [Cell("m", task, "sc", seed, 1e-3) for task in tasks for seed in range(num)]


class Scripted:
    """Ends the cell that began first; `ends` says how, by task and seed, one word for each attempt."""

    def __init__(self, num_workers, ends=None):
        self.workers, self._ends = range(num_workers), {key: deque(words) for key, words in (ends or {}).items()}
        self._running, self.began = deque(), []

    def start(self, worker, job):
        assert worker not in {busy for busy, _ in self._running}
        self._running.append((worker, job.cell))
        self.began.append((worker, job.cell.task, job.cell.seed))

    def wait(self, seconds):
        if not self._running:
            return []
        worker, cell = self._running.popleft()
        words = self._ends.get((cell.task, cell.seed))
        match words.popleft() if words else "finished":
            case "lost":
                return [Lost(worker, cell, "signal 9 (SIGKILL)")]
            case "failed":
                return [Failed(worker, cell, "broken")]
        return [Finished(worker, cell)]

    def close(self):
        pass


class Told:
    def __init__(self):
        self.events = []

    def on_start(self, worker, cell):
        pass

    def on_event(self, event):
        self.events.append((type(event).__name__, event.cell.task, event.cell.seed))

    def on_look(self):
        pass


def run(cells, executor, share=None):
    observer, share = Told(), share or Share()
    failed = run_cells(cells, executor, job=lambda cell: Job(cell, None), share=share, observer=observer)
    assert share.claimed == []
    return failed, observer.events


def test_every_cell_runs_once():
    cells = cells_of("a", "b", "c", num=3)
    failed, events = run(cells, Scripted(2))
    assert failed == {}
    assert sorted(events) == sorted(("Finished", cell.task, cell.seed) for cell in cells)


def test_a_worker_stays_with_its_model_and_task():
    executor = Scripted(2)
    run(cells_of("a", "b", num=4), executor)
    assert {task for worker, task, _ in executor.began if worker == 0} == {"a"}
    assert {task for worker, task, _ in executor.began if worker == 1} == {"b"}


def test_an_idle_worker_takes_what_nobody_has_then_the_longest_queue():
    cells = [*cells_of("a", num=2), *cells_of("b", num=3), *cells_of("c", num=1)]
    assert next_cell(cells, {0: ("m", "a")}, 1).task == "b"
    assert next_cell(cells, {0: ("m", "a"), 1: ("m", "c")}, 0).task == "a"
    assert next_cell(cells[:5], {0: ("m", "a"), 1: ("m", "b"), 2: ("m", "c")}, 2).task == "b"


def test_a_lost_workers_cell_is_run_again():
    executor = Scripted(1, {("a", 0): ["lost"]})
    failed, events = run(cells_of("a"), executor)
    assert failed == {}
    assert executor.began == [(0, "a", 0), (0, "a", 0), (0, "a", 1)]
    assert events == [("Lost", "a", 0), ("Finished", "a", 0), ("Finished", "a", 1)]


def test_a_cell_that_loses_its_worker_twice_has_failed():
    executor = Scripted(2, {("a", 0): ["lost", "lost"]})
    failed, events = run(cells_of("a"), executor)
    assert failed == {cells_of("a")[0]: "its worker ended 2 times, last time by signal 9 (SIGKILL)"}
    assert sorted(events) == [("Failed", "a", 0), ("Finished", "a", 1), ("Lost", "a", 0)]


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_a_failure_stops_nothing_else(num_workers):
    executor = Scripted(num_workers, {("a", 1): ["failed"]})
    failed, events = run(cells_of("a", "b"), executor)
    assert failed == {cells_of("a")[1]: "broken"}
    assert len(events) == 4


def test_cells_of_one_training_are_run_by_one_worker_one_after_another():
    executor = Scripted(2, {("b", 1): ["lost"]})
    failed, events = run(cells_of("a", "b", "c"), executor, Share(alike=("a", "b", "c")))
    assert failed == {}
    for seed, worker in ((0, 0), (1, 1)):
        assert {began[0] for began in executor.began if began[2] == seed} == {worker}
    assert sorted(events) == sorted(
        [("Lost", "b", 1), *(("Finished", task, seed) for task in "abc" for seed in (0, 1))]
    )


def test_what_another_command_runs_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(scheduling, "_SECONDS_BETWEEN_CLAIMS", 0.0)
    executor = Scripted(1)
    failed, _ = run(cells_of("a"), executor, Share(taken=["a 0", "a 0"]))
    assert failed == {}
    assert sorted(executor.began) == [(0, "a", 0), (0, "a", 1)]


def test_what_another_command_has_ended_is_not_run():
    executor = Scripted(1)
    failed, events = run(cells_of("a", num=3), executor, Share(ended={("a", 0): Finished, ("a", 2): Failed}))
    assert executor.began == [(0, "a", 1)]
    assert failed == {cells_of("a", num=3)[2]: "broken"}
    assert sorted(events) == [("Failed", "a", 2), ("Finished", "a", 0), ("Finished", "a", 1)]


def test_a_training_is_free_once_its_failure_is_told():
    """Another command that has the training then finds error.txt."""
    share, cells = Share(), cells_of("a")
    claimed = []

    class Keeper(Told):
        def on_event(self, event):
            claimed.append((type(event), share.training(event.cell) in share.claimed))

    executor = Scripted(1, {("a", 1): ["failed"]})
    run_cells(cells, executor, job=lambda cell: Job(cell, None), share=share, observer=Keeper())
    assert claimed == [(Finished, True), (Failed, True)]
    assert share.claimed == []


def test_the_training_of_a_worker_that_is_gone_is_free_for_another():
    class Leaving(Scripted):
        """Its first worker is not there any more once it has ended a cell."""

        @property
        def workers(self):
            return [1] if self.began else [0]

        @workers.setter
        def workers(self, _):
            pass

    executor = Leaving(2)
    failed, _ = run(cells_of("a", "b", num=1), executor, Share(alike=("a", "b")))
    assert failed == {}
    assert executor.began == [(0, "a", 0), (1, "b", 0)]
