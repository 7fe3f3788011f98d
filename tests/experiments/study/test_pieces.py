"""Pieces of a study among workers: what a stop leaves, and what a piece has to leave."""

import os
import signal

import pytest

from tests.experiments.study.test_plan import planned, write_study
from tests.support.runs import write_run
from toolkit.core.errors import SettingsError, ToolkitError
from toolkit.execution.local import LocalExecutor
from toolkit.execution.work import Event, Failed, Finished, Lost, Work
from toolkit.experiments.study import pieces
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.pieces import train_pieces
from toolkit.experiments.study.worker import PieceRunner, PieceTask
from toolkit.run.folder import RunFolder
from toolkit.work.start import ExecutorKind


@pytest.mark.parametrize("is_lost", [False, True])
def test_nothing_begins_behind_a_stop(tmp_path, monkeypatch, capsys, is_lost):
    started = []

    class Stopped(LocalExecutor):
        """A worker whose first piece ends with a stop of the command."""

        def start(self, worker: int, work: Work) -> None:
            started.append(work.key)

        def wait(self, seconds: float) -> list[Event]:
            if len(started) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return [Lost(0, started[-1], "signal 15") if is_lost else Finished(0, started[-1])]

    monkeypatch.setattr(pieces, "LocalExecutor", Stopped)
    write_run(tmp_path, phase_steps=4)
    plan = planned(write_study(tmp_path, ["clm 8", "mlm 8"]))
    assert train_pieces(plan, StudyFolder(tmp_path / "study"), executor=ExecutorKind.LOCAL)
    assert started == [("run-clm-8", 8)]
    assert "stopped; the same command goes on with 2 models: run-clm-8, run-mlm40-8" in capsys.readouterr().out


def test_a_worker_that_is_free_gets_nothing_behind_a_stop(tmp_path, monkeypatch):
    started = []

    class Stopped(LocalExecutor):
        """Two workers, of which the first ends its piece after a stop, and then the second."""

        def start(self, worker: int, work: Work) -> None:
            started.append(work.key)

        def wait(self, seconds: float) -> list[Event]:
            os.kill(os.getpid(), signal.SIGTERM)
            ended.append(len(ended))
            return [Finished(ended[-1], started[ended[-1]])]

    ended = []
    monkeypatch.setattr(pieces, "LocalExecutor", Stopped)
    monkeypatch.setattr(pieces, "_places", lambda machine: [{}, {}])
    write_run(tmp_path, phase_steps=4)
    plan = planned(write_study(tmp_path, ["clm 8", "mlm 8", "mlm 2 + clm 6"]))
    assert len(plan.pieces) > 2
    assert train_pieces(plan, StudyFolder(tmp_path / "study"), executor=ExecutorKind.LOCAL)
    assert len(started) == 2


def test_what_waits_for_a_failed_piece_says_for_which(tmp_path, monkeypatch, capsys):
    class Failing(LocalExecutor):
        def start(self, worker: int, work: Work) -> None:
            self.key = work.key

        def wait(self, seconds: float) -> list[Event]:
            return [Failed(0, self.key, "exit code 2")]

    monkeypatch.setattr(pieces, "LocalExecutor", Failing)
    write_run(tmp_path, phase_steps=4)
    plan = planned(write_study(tmp_path, ["clm 8", "clm 3 + mlm 5"]))
    assert not train_pieces(plan, StudyFolder(tmp_path / "study"), executor=ExecutorKind.LOCAL)
    first, second = plan.pieces[0], plan.pieces[1]
    printed = capsys.readouterr().out.splitlines()
    assert f"{first.name}: failed on the way to step 3: exit code 2" in printed
    assert f"{second.name}: not started on the way to step 8: it needs step 3 of {first.name}" in printed


def test_a_piece_that_was_stopped_is_not_done(tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.experiments.study.worker.stop_signals", lambda: ())
    task = PieceTask(("--version",), RunFolder(tmp_path / "run"), 8, tmp_path / "log")
    with pytest.raises(ToolkitError, match=r"asked to stop and has saved step 0\. The same command goes on\."):
        PieceRunner()(Work(("run", 8), task, group="run"))


def test_models_of_several_machines_are_those_of_slurm(tmp_path):
    write_run(tmp_path, phase_steps=4)
    source = write_study(tmp_path, ["clm 8"])
    with open(source, "a") as file:
        file.write("[machine]\nnodes = 2\n")
    with pytest.raises(SettingsError, match=r"machine\.nodes=2, but --executor local trains each model on one machine"):
        train_pieces(planned(source), StudyFolder(tmp_path / "study"), executor=ExecutorKind.LOCAL)
