"""Workers as processes of this machine: what they leave, and what happens when they or their command are killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.support.toy_job import SECONDS, ToyJob, crew_of
from toolkit.core.errors import ToolkitError
from toolkit.work.claims import Item
from toolkit.work.commands import job_file
from toolkit.work.start import Here


def items_of(**words: str) -> list[Item]:
    return [Item(key, word) for key, word in words.items()]


def run(job: ToyJob, num_workers: int) -> list[str]:
    """All that a crew says of lost workers."""
    said = list[str]()
    with crew_of(job, num_workers) as crew:
        crew.run(said.extend)
    return said


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(SECONDS)


def test_a_worker_does_many_items_and_is_replaced_after_a_bug(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, items_of(a="work", b="raise", c="break", d="work"))
    assert run(job, 1) == []
    assert job.done == {"a", "d"}
    assert set(job.failures) == {"b", "c"}
    first, second, third, fourth = (job.attempts(key)[0] for key in "abcd")
    assert first == second == third != fourth
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert log.startswith("--- a\n--- b\na file is broken\n--- c\nRuntimeError: a bug\nTraceback")


def test_the_item_of_a_killed_worker_is_done_by_another_process(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, items_of(a="die once", b="exit", c="die in the middle", d="work"))
    said = run(job, 2)
    killed = "its worker ended by signal 9 (SIGKILL), as the system does where memory is short; it is run again"
    left = {line.partition(":")[0] for line in said if "ended by exit code 7; see" in line}
    assert sorted(line for line in said if "signal" in line) == [f"a: {killed}", f"c: {killed}"]
    assert left == {"b"}
    assert job.done == {"a", "c", "d"}
    # The other worker may begin it between the second end and the look that notes it.
    attempts = [len(set(job.attempts(key))) for key in "abcd"]
    assert attempts in ([2, 2, 1, 1], [2, 3, 1, 1])
    assert job.failures["b"].startswith(f"its worker ended {attempts[1]} times, last time by exit code 7")


def test_workers_that_do_not_start_end_the_command_with_their_log(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, items_of(a="work"))
    crew = Here(job, places=[{}], logs=tmp_path / "logs")
    job_file(job.folder).write_bytes(b"broken")
    with crew, pytest.raises(ToolkitError, match=r"3 workers in a row ended .* by exit code 1; see .*worker-0\.log"):
        crew.run(lambda lines: None)
    assert "UnpicklingError" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_each_worker_has_its_place(tmp_path: Path) -> None:
    job, places = ToyJob(tmp_path, items_of(a="meet", b="meet")), [{"TOY_PLACE": place} for place in ("0", "1")]
    with Here(job, places=places, logs=tmp_path / "logs") as crew:
        crew.run(lambda lines: None)
    assert sorted((tmp_path / "done" / key).read_text() for key in "ab") == ["0", "1"]


def test_the_end_of_the_block_ends_a_worker_in_the_middle_of_an_item(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, items_of(a="wait"))

    def interrupt(lines: Sequence[str]) -> None:
        if job.attempts("a"):
            raise KeyboardInterrupt

    with crew_of(job, 1) as crew, pytest.raises(KeyboardInterrupt):
        crew.run(interrupt)
    assert not psutil.pid_exists(job.attempts("a")[0])


def test_a_stop_asks_workers_to_end_and_starts_no_other(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, items_of(a="wait", b="work"))
    with crew_of(job, 1) as crew:
        crew.run(lambda lines: crew.stop() if job.attempts("a") else None)
    assert not psutil.pid_exists(job.attempts("a")[0])
    assert (job.done, job.failures) == (set(), {})


def test_workers_end_with_their_command(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, [])
    script = tmp_path / "command.py"
    script.write_text(
        "from pathlib import Path\n"
        "from tests.support.toy_job import ToyJob, crew_of\n"
        "from toolkit.work.claims import Item\n"
        f"crew_of(ToyJob(Path({str(tmp_path)!r}), [Item('a', 'wait')]), 1).run(lambda lines: None)\n"
    )
    with subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": os.getcwd()}) as command:
        wait_for(lambda: job.attempts("a"))
        worker = psutil.Process(job.attempts("a")[0])
        command.send_signal(signal.SIGKILL)
    psutil.wait_procs([worker], timeout=60)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_a_command_waits_for_what_another_one_does(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, items_of(a="wait"))
    other = threading.Thread(target=run, args=(job, 1))
    other.start()
    wait_for(lambda: job.attempts("a"))
    waiting = threading.Thread(target=run, args=(job, 1))
    waiting.start()
    waiting.join(2)
    assert waiting.is_alive()
    (tmp_path / "go").touch()
    for thread in (other, waiting):
        thread.join(60)
    assert (job.done, len(job.attempts("a"))) == ({"a"}, 1)
