"""`toolkit study` with its launches: asked to stop, killed, and with a model that diverges."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launches import wait_for_step
from tests.support.runs import read_metrics, write_run
from toolkit.run.folder import RunFolder

pytestmark = pytest.mark.slow

STUDY = """
[study]
base = "{folder}/run.toml"
dir = "{folder}/study"
[set.lr]
warmup_steps = 1
decay_steps = 2
[[models]]
axes.schedule = ["clm 30", "clm 15 + mlm 15"]
[machine]
threads = 1
"""
_DIVERGING = """
[[models]]
set.lr.peak = 1e30
axes.schedule = ["mlm 6"]
"""
_SECONDS = 300


def start(study: Path, log: Path) -> "subprocess.Popen[str]":
    with log.open("a") as output:
        command = [sys.executable, "-m", "toolkit.cli", "study", str(study)]
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)


def test_it_goes_on_where_it_was_stopped_or_killed_and_a_model_that_diverges_stops_no_other(tmp_path):
    write_run(tmp_path, phase_steps=15)
    study, log = tmp_path / "shares.toml", tmp_path / "log"
    study.write_text(STUDY.format(folder=tmp_path))
    trunk, leaf = (tmp_path / "study" / "runs" / name for name in ("run-clm-30", "run-clm-15-mlm40-30"))

    running = start(study, log)
    wait_for_step(trunk, 1, [running])
    running.send_signal(signal.SIGTERM)
    assert running.wait(_SECONDS) == 0, log.read_text()
    assert "stopped; the same command continues with" in log.read_text()
    steps = [step for step, _ in RunFolder(trunk).steps()]
    assert steps
    assert not (leaf / "checkpoints").exists()

    running = start(study, log)
    wait_for_step(leaf, 16, [running])
    running.kill()
    running.wait(_SECONDS)
    study.write_text(study.read_text() + _DIVERGING)
    assert start(study, log).wait(_SECONDS) == 0, log.read_text()
    assert "run-mlm40-6: diverged on the way to step 6, at step 2, which is its outcome" in log.read_text()
    # All others were trained, each step once.
    for run, first in ((trunk, 1), (leaf, 16)):
        assert RunFolder(run).checkpoint(30).is_dir()
        assert [line["step"] for line in read_metrics(run) if "loss" in line] == list(range(first, 31))
