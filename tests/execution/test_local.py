"""Workers as processes: what they answer, and what happens when they or their parent are killed."""

import os
import subprocess
import sys
import time
from contextlib import closing

import psutil
import pytest

from tests.support.shares import Share
from toolkit.execution.local import LocalExecutor
from toolkit.execution.scheduling import run_work
from toolkit.execution.work import Failed, Finished, Lost, Work

RUNNER = "tests.support.work:Work"
KEYS = [f"item {number}" for number in range(4)]


class Silent:
    def on_start(self, worker, key):
        pass

    def on_event(self, event):
        pass

    def on_look(self):
        pass


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def is_written(file):
    """Whether a worker has written its process id."""
    return file.exists() and file.read_text()


def executor_of(folder, num=1):
    return closing(LocalExecutor(RUNNER, environments=[{}] * num, logs=folder / "workers"))


def ids_of(folder, key=KEYS[0]):
    return folder / f"ids-{key}"


def item(folder, word, key=KEYS[0]):
    return Work(key, (word, str(ids_of(folder, key))))


def kill(process_id):
    """End a process, and wait until it is gone."""
    process = psutil.Process(process_id)
    process.kill()
    psutil.wait_procs([process], timeout=60)


def outcome(executor):
    events = []
    while not events:
        events = executor.wait(20)
    return events


def test_a_worker_runs_many_items_in_one_process(folder):
    with executor_of(folder) as executor:
        for key in KEYS:
            executor.start(0, item(folder, "work", key))
            assert outcome(executor) == [Finished(0, key)]
    assert len({ids_of(folder, key).read_text() for key in KEYS}) == 1


def test_what_a_user_can_fix_keeps_the_worker_and_a_bug_replaces_it(folder):
    with executor_of(folder) as executor:
        for word in ("raise", "break", "work"):
            executor.start(0, item(folder, word))
            (event,) = outcome(executor)
            if word == "raise":
                assert event == Failed(0, KEYS[0], "a file is broken")
            if word == "break":
                assert event.message.startswith("RuntimeError: a bug\nTraceback")
        first, second, third = ids_of(folder).read_text().split()
    assert first == second != third
    assert "RuntimeError: a bug" in (folder / "workers" / "worker-0.log").read_text()


@pytest.mark.parametrize(
    ("word", "reason"),
    [("die once", "signal 9 (SIGKILL), as the system does where memory is short"), ("exit", "exit code 7; see ")],
)
def test_a_worker_that_ends_is_noticed(folder, word, reason):
    with executor_of(folder) as executor:
        executor.start(0, item(folder, word))
        (event,) = outcome(executor)
    assert isinstance(event, Lost)
    assert event.reason.startswith(reason)


def test_the_item_of_a_killed_worker_is_run_again_by_a_new_one(folder):
    words = {KEYS[0]: "die once", KEYS[1]: "exit"}
    with executor_of(folder, 2) as executor:
        items = [item(folder, words.get(key, "work"), key) for key in KEYS]
        failed = run_work(items, executor, share=Share(), observer=Silent())
    assert {key: message.split(";")[0] for key, message in failed.items()} == {
        KEYS[1]: "its worker ended 2 times, last time by exit code 7"
    }
    ids = [ids_of(folder, key).read_text().split() for key in KEYS]
    assert [len(found) for found in ids] == [2, 2, 1, 1]
    assert ids[0][0] != ids[0][1]


def test_one_that_is_killed_while_it_is_idle_is_replaced(folder):
    with executor_of(folder) as executor:
        executor.start(0, item(folder, "work"))
        outcome(executor)
        kill(*executor.process_ids)
        executor.start(0, item(folder, "work", KEYS[1]))
        assert outcome(executor) == [Finished(0, KEYS[1])]


def test_one_that_does_not_start_fails_its_items_with_the_reason(folder):
    executor = LocalExecutor("tests.support.nowhere:Work", environments=[{}], logs=folder / "workers")
    with closing(executor):
        failed = run_work([item(folder, "pass", key) for key in KEYS[:2]], executor, share=Share(), observer=Silent())
    assert set(failed) == set(KEYS[:2])
    assert all("ModuleNotFoundError: No module named 'tests.support.nowhere'" in each for each in failed.values())


def test_closing_ends_a_worker_in_the_middle_of_an_item(folder):
    with executor_of(folder) as executor:
        executor.start(0, item(folder, "sleep"))
        while not is_written(ids_of(folder)):
            time.sleep(0.05)
        (process,) = executor.process_ids
    assert not psutil.pid_exists(process)


def test_workers_end_when_their_parent_is_killed(folder):
    code = f"""
from pathlib import Path
from tests.execution.test_local import executor_of, ids_of, item, outcome
if __name__ == "__main__":
    folder = Path({str(folder)!r})
    with executor_of(folder) as executor:
        executor.start(0, item(folder, "sleep"))
        outcome(executor)
"""
    script = folder / "parent.py"
    script.write_text(code)
    with subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": os.getcwd()}) as parent:
        deadline = time.monotonic() + 60
        while not is_written(ids_of(folder)) and time.monotonic() < deadline:
            time.sleep(0.05)
        worker = psutil.Process(int(ids_of(folder).read_text()))
        parent.kill()
    psutil.wait_procs([worker], timeout=60)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
