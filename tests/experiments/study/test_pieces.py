"""Pieces of a study as items of work: what one has to leave, what a stop leaves, and how a failure is told."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.experiments.study.test_plan import planned, write_study
from tests.support.runs import write_run
from toolkit.core.errors import SettingsError
from toolkit.core.signals import stop_signals_kept
from toolkit.experiments.study import pieces
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.pieces import StudyJob, train_pieces
from toolkit.experiments.study.view import StudyView
from toolkit.run.folder import RunFolder
from toolkit.work.claims import StoppedError, work_on
from toolkit.work.start import ExecutorKind

_TRAIN = """
import os, pathlib, signal, sys
_, _, _, run_file, _, until = sys.argv[1:]
run = pathlib.Path(run_file).parent
run.mkdir(parents=True, exist_ok=True)
with (run.parents[1] / "trained").open("a") as file:
    file.write(f"{run.name}@{until}\\n")
"""
_MAKE = '(run / "made").write_text(until)\n'


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study whose pieces are trained by a program of Python: as `toolkit train`, and then as a test has it."""

    def made(run: RunFolder) -> int:
        file = run.path / "made"
        return int(file.read_text()) if file.exists() else 0

    def make(schedules, program, machine=""):
        monkeypatch.setattr(pieces, "_PROGRAM", (sys.executable, "-c", _TRAIN + program))
        source = write_study(tmp_path, schedules)
        Path(source).write_text(Path(source).read_text() + machine)
        (tmp_path / "study" / "logs").mkdir(parents=True)
        plan, folder = planned(source), StudyFolder(tmp_path / "study")
        job = StudyJob(folder.path / ".work", plan, folder)
        return plan, folder, job, StudyView(plan, folder, job)

    monkeypatch.setattr(RunFolder, "newest_step", made)
    write_run(tmp_path, phase_steps=4)
    with stop_signals_kept():
        yield make


def lines_of(view):
    view.look()
    return [line.text for line in view.news()]


def test_pieces_are_trained_behind_those_that_they_need(study, tmp_path):
    *_, job, view = study(["clm 8", "clm 3 + mlm 5"], _MAKE)
    work_on(job)
    trained = (tmp_path / "study" / "trained").read_text().split()
    assert trained == ["run-clm-8@3", "run-clm-8@8", "run-clm-3-mlm40-8@8"]
    told = ["run-clm-8: done up to step 3", "run-clm-8: done up to step 8", "run-clm-3-mlm40-8: done up to step 8"]
    assert lines_of(view) == told
    assert lines_of(view) == []


def test_nothing_begins_behind_a_stop_and_what_trained_is_not_failed(study, tmp_path):
    """The stop is passed on to it: it saves, and ends well."""
    program = "os.kill(os.getppid(), signal.SIGTERM)\nsignal.sigwait([signal.SIGTERM])\n"
    blocked = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    *_, job, view = study(["clm 8", "mlm 8"], blocked + program)
    with pytest.raises(StoppedError):
        work_on(job)
    assert (tmp_path / "study" / "trained").read_text().split() == ["run-clm-8@8"]
    assert lines_of(view) == []


def test_what_waits_for_a_failed_piece_says_for_which(study, tmp_path):
    *_, job, view = study(["clm 8", "clm 3 + mlm 5", "mlm 8"], f"if 'clm-8' in run.name: sys.exit('no GPU')\n{_MAKE}")
    work_on(job)
    log = tmp_path / "study" / "logs" / "run-clm-8@3.log"
    assert lines_of(view) == [
        f"run-clm-8: failed on the way to step 3: exit code 1; {log} ends:\n  no GPU",
        "run-clm-8: not started on the way to step 8: it needs step 3 of run-clm-8",
        "run-clm-3-mlm40-8: not started on the way to step 8: it needs step 3 of run-clm-8",
        "run-mlm40-8: done up to step 8",
    ]


def test_a_piece_that_ended_too_early_or_diverged_is_not_done(study):
    record = '{"step": 2, "message": "", "corpora": {}}'
    program = f"if 'clm' in run.name:\n    (run / 'diverged.json').write_text('{record}')\n    sys.exit(3)\n"
    plan, _, job, view = study(["clm 8", "mlm 8"], program)
    work_on(job)
    diverged, failed = lines_of(view)
    assert diverged == "run-clm-8: diverged on the way to step 8, at step 2, which is its outcome"
    assert failed.startswith("run-mlm40-8: failed on the way to step 8: it was asked to stop and has saved step 0. ")
    assert [view.of(leaf).kind for leaf in plan.tree.leaves.values()] == ["diverged", "failed"]


def test_a_stopped_study_says_what_is_left(study, monkeypatch, capsys):
    class Stopped:
        """A crew that is asked to stop while it works."""

        def __init__(self, *_, **__):
            self.is_stopped = False

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, look):
            os.kill(os.getpid(), signal.SIGTERM)
            assert self.is_stopped

        def stop(self):
            self.is_stopped = True

    monkeypatch.setattr(pieces, "_crew", Stopped)
    plan, folder, *_ = study(["clm 8", "mlm 8"], _MAKE)
    with folder.locked():
        assert train_pieces(plan, folder, executor=ExecutorKind.LOCAL)
    assert "stopped; the same command continues with 2 models: run-clm-8, run-mlm40-8" in capsys.readouterr().out


def test_models_of_several_machines_are_those_of_slurm(study):
    plan, folder, *_ = study(["clm 8"], _MAKE, machine="[machine]\nnodes = 2\n")
    with pytest.raises(SettingsError, match=r"machine\.nodes=2, but --executor local trains each model on one machine"):
        train_pieces(plan, folder, executor=ExecutorKind.LOCAL)
