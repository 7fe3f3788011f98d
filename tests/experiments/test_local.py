"""Workers as processes: what they answer, and what happens when they or their parent are killed."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import psutil
import pytest

from tests.support.shares import Share
from toolkit.experiments import Cell, Job, LocalExecutor, run_cells
from toolkit.experiments.scheduling import Failed, Finished, Lost

WORK = "tests.support.grid_work:Work"
CELLS = [Cell("m", "t", "sc", seed, 1e-3) for seed in range(4)]


class Silent:
    def on_start(self, worker, cell):
        pass

    def on_event(self, event):
        pass

    def on_look(self):
        pass


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def _written(file):
    """Whether a worker has written its process id."""
    return file.exists() and file.read_text()


def executor_of(folder, num=1):
    return closing(LocalExecutor(WORK, environments=[{}] * num, logs=folder / "workers"))


def job(folder, word, cell=CELLS[0]):
    return Job(cell, (word, str(folder / f"ids-{cell.seed}")))


def outcome(executor):
    events = []
    while not events:
        events = executor.wait(20)
    return events


def test_a_worker_runs_many_cells_in_one_process(folder):
    with executor_of(folder) as executor:
        for cell in CELLS:
            executor.start(0, job(folder, "work", cell))
            assert outcome(executor) == [Finished(0, cell)]
    assert len({(folder / f"ids-{cell.seed}").read_text() for cell in CELLS}) == 1


def test_what_a_user_can_fix_keeps_the_worker_and_a_bug_replaces_it(folder):
    with executor_of(folder) as executor:
        for word in ("raise", "break", "work"):
            executor.start(0, job(folder, word))
            (event,) = outcome(executor)
            if word == "raise":
                assert event == Failed(0, CELLS[0], "a file is broken")
            if word == "break":
                assert event.message.startswith("RuntimeError: a bug\nTraceback")
        first, second, third = (folder / "ids-0").read_text().split()
    assert first == second != third
    assert "RuntimeError: a bug" in (folder / "workers" / "worker-0.log").read_text()


@pytest.mark.parametrize(
    ("word", "reason"),
    [("die once", "signal 9 (SIGKILL), as the system does where memory is short"), ("exit", "exit code 7; see ")],
)
def test_a_worker_that_ends_is_noticed(folder, word, reason):
    with executor_of(folder) as executor:
        executor.start(0, job(folder, word))
        (event,) = outcome(executor)
    assert isinstance(event, Lost)
    assert event.reason.startswith(reason)


def test_the_cell_of_a_killed_worker_is_run_again_by_a_new_one(folder):
    words = {CELLS[0]: "die once", CELLS[1]: "exit"}
    with executor_of(folder, 2) as executor:
        jobs = {cell: job(folder, words.get(cell, "work"), cell) for cell in CELLS}
        failed = run_cells(CELLS, executor, job=jobs.__getitem__, share=Share(), observer=Silent())
    assert {cell: message.split(";")[0] for cell, message in failed.items()} == {
        CELLS[1]: "its worker ended 2 times, last time by exit code 7"
    }
    ids = [(folder / f"ids-{cell.seed}").read_text().split() for cell in CELLS]
    assert [len(found) for found in ids] == [2, 2, 1, 1]
    assert ids[0][0] != ids[0][1]


def test_one_that_is_killed_while_it_is_idle_is_replaced(folder):
    with executor_of(folder) as executor:
        executor.start(0, job(folder, "work"))
        outcome(executor)
        (process,) = executor.process_ids
        os.kill(process, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(process)], timeout=10)
        executor.start(0, job(folder, "work", CELLS[1]))
        assert outcome(executor) == [Finished(0, CELLS[1])]


def test_closing_ends_a_worker_in_the_middle_of_a_cell(folder):
    with executor_of(folder) as executor:
        executor.start(0, job(folder, "sleep"))
        while not _written(folder / "ids-0"):
            time.sleep(0.05)
        (process,) = executor.process_ids
    assert not psutil.pid_exists(process)


def test_workers_end_when_their_parent_is_killed(folder):
    code = f"""
from pathlib import Path
from tests.experiments.test_local import executor_of, job, outcome
if __name__ == "__main__":
    folder = Path({str(folder)!r})
    with executor_of(folder) as executor:
        executor.start(0, job(folder, "sleep"))
        outcome(executor)
"""
    script = folder / "parent.py"
    script.write_text(code)
    with subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": os.getcwd()}) as parent:
        deadline = time.monotonic() + 60
        while not _written(folder / "ids-0") and time.monotonic() < deadline:
            time.sleep(0.05)
        worker = psutil.Process(int((folder / "ids-0").read_text()))
        parent.kill()
    # It sleeps for a minute.
    psutil.wait_procs([worker], timeout=10)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
