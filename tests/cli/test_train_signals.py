"""`toolkit train` as a user runs it: signals, kills, exit codes. Real launches, about ten seconds each."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.resume.test_resume import compare
from tests.support.launches import ending
from tests.support.runs import read_metrics, write_run
from toolkit.run import RunFolder

_LONG = ("schedule.0.steps=60", "schedule.1.steps=60", "checkpoint.every=20", "log.every=5")


def _train(
    run_file: Path,
    folder: Path,
    *overrides: str,
    num_procs: int = 1,
    options: tuple[str, ...] = (),
    terminal: int | None = None,
) -> "subprocess.Popen[str]":
    """With pipes, or on a terminal that is theirs."""
    command = [sys.executable, "-m", "toolkit.cli", "train", str(run_file), "--num-procs", str(num_procs), *options]
    for override in (f"run.dir={folder}", *overrides):
        command += ["--set", override]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        stdin=terminal,
        stdout=terminal or subprocess.PIPE,
        stderr=terminal or subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: _prepare(terminal),
    )


def _prepare(terminal: int | None) -> None:
    # A suite that a shell started in the background ignores them, and what it starts inherits that.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if terminal is not None:
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def _wait_for_step(folder: Path, step: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 180
    while not any(line["step"] >= step for line in read_metrics(folder)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.05)


def _catches(process: "subprocess.Popen[str]", number: signal.Signals) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def _output(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, (process.returncode, out, err)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [20, 55])
def test_a_stopped_and_resumed_run_equals_the_whole_one(tmp_path, stop_at):
    run_file = write_run(tmp_path)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert ending(_output(_train(run_file, whole, *_LONG))) == "finished at step 120"
    process = _train(run_file, cut, *_LONG)
    _wait_for_step(cut, stop_at, process)
    process.send_signal(signal.SIGTERM)
    last = ending(_output(process))
    assert last.startswith("stopped at step ")
    step = int(last.removeprefix("stopped at step "))
    assert stop_at <= step < 120
    out = _output(_train(run_file, cut, *_LONG))
    assert f"resuming from step {step}" in out
    assert compare(whole, cut) == []


@pytest.mark.slow
def test_a_run_goes_as_far_as_it_is_told(tmp_path):
    run_file, folder = write_run(tmp_path), tmp_path / "run"
    for until, ended in ((3, "stopped at step 3"), (2, "already at step 3"), (20, "finished at step 20")):
        process = _train(run_file, folder, options=("--until", str(until)))
        assert ending(_output(process)) == ended
    assert [line["step"] for line in read_metrics(folder)] == list(range(21))


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_behind_and_resumes(tmp_path):
    run_file = write_run(tmp_path)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    _output(_train(run_file, whole, *_LONG, num_procs=2))
    process = _train(run_file, cut, *_LONG, num_procs=2)
    _wait_for_step(cut, 55, process)
    process.kill()
    process.communicate()
    out = _output(_train(run_file, cut, *_LONG, num_procs=2))
    assert "resuming from step " in out
    assert compare(whole, cut) == []
    steps = [line["step"] for line in read_metrics(cut)]
    assert steps == sorted(set(steps))


@pytest.mark.slow
def test_a_stop_before_the_first_step_saves_nothing(tmp_path):
    run_file = write_run(tmp_path)
    process = _train(run_file, tmp_path / "run")
    deadline = time.monotonic() + 120
    # From before the imports on: seconds before there is a run folder, or a launcher.
    while not _catches(process, signal.SIGUSR1):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    assert _output(process).splitlines()[-1] == "stopped at step 0 of 20. Start the same command again to resume."
    assert not list((tmp_path / "run").glob("checkpoints/step-*"))


@pytest.mark.slow
def test_a_run_whose_output_is_cut_off_goes_on_to_its_end(tmp_path):
    """As `| head -2` does; the change of phases is printed later."""
    process = _train(write_run(tmp_path), tmp_path / "run", "checkpoint.every=5")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=300) == 0, err
    assert err.count("standard output is lost (Broken pipe); the run continues") == 1
    assert [step for step, _ in RunFolder(tmp_path / "run").steps()] == [20, 15]


@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_is_saved(tmp_path):
    """The system sends SIGHUP, what is printed has no place any more, and a shell may send SIGHUP again."""
    screen, terminal = pty.openpty()
    process = _train(write_run(tmp_path), tmp_path / "run", "schedule.0.steps=60_000", terminal=terminal)
    os.close(terminal)
    _wait_for_step(tmp_path / "run", 10, process)
    os.close(screen)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=300) == 0
    ((saved, _),) = RunFolder(tmp_path / "run").steps()
    assert saved == read_metrics(tmp_path / "run")[-1]["step"] >= 10


def test_ctrl_c_before_the_first_step_says_that_the_same_command_starts_again(tmp_path):
    process = _train(write_run(tmp_path), tmp_path / "run")
    while not (tmp_path / "run" / "run.toml").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err == "interrupted before the first step, nothing was saved; the same command starts again\n"


def test_ctrl_c_leaves_with_130_and_no_traceback(tmp_path):
    run_file = write_run(tmp_path)
    # So long that no run ends by itself before the signal, however busy the machine.
    process = _train(run_file, tmp_path / "run", "schedule.0.steps=60_000", "log.every=5", "checkpoint.every=3")
    _wait_for_step(tmp_path / "run", 10, process)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    newest, _ = RunFolder(tmp_path / "run").steps()[0]
    assert err.endswith(f"interrupted; the same command resumes from step {newest:,}\n")
    assert "Traceback" not in err


def test_a_value_that_is_not_finite_ends_the_run_with_3(tmp_path):
    run_file = write_run(tmp_path)
    process = _train(run_file, tmp_path / "run", "lr.peak=1e30", "checkpoint.every=1", "lr.warmup_steps=0")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 3
    assert "step " in err
    assert "not finite" in err
    assert "Traceback" not in err
