"""Pieces of a study as work items: each is trained by `toolkit train` in a process of its own.

As many run at a time as fit on the GPUs or cores of a machine or cluster.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from toolkit.core.console import console
from toolkit.core.errors import NonFiniteError, SettingsError, ToolkitError
from toolkit.core.signals import stop_signals, stop_signals_kept
from toolkit.core.text import counted, first_few
from toolkit.engine.gpus import VISIBLE_DEVICES, is_cpu_wanted, visible_gpus
from toolkit.experiments.study.declaration import MachineSettings
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.plan import RunPiece, StudyPlan
from toolkit.experiments.study.view import StudyView
from toolkit.run.divergence import read_divergence
from toolkit.run.folder import RunFolder
from toolkit.work.claims import Item, Job, StoppedError
from toolkit.work.commands import Command
from toolkit.work.ray import Cluster, OnRay, Resources
from toolkit.work.show import shown
from toolkit.work.start import Crew, ExecutorKind, Here

# Processes that a worker starts end with it, even if it is killed.
_PROGRAM = (sys.executable, "-m", "toolkit.core.processes")
_TOOLKIT = ("toolkit.cli",)
_LINES_OF_AN_ERROR = 3


@dataclass(frozen=True)
class Training:
    """Everything needed to train a piece."""

    arguments: tuple[str, ...]
    """Arguments after `toolkit`."""
    run: Path
    """Folder of the run that it trains."""
    until: int
    """Updates of the run when the piece is done."""
    log: Path
    """File that its output is appended to."""


class StudyJob(Job):
    """Remaining pieces of a study. A stop is forwarded to the training process, which saves and exits cleanly."""

    def __init__(self, folder: Path, plan: StudyPlan, study: StudyFolder) -> None:
        super().__init__(folder, [_item(piece, plan, study) for piece in plan.pieces])
        self._training: subprocess.Popen[bytes] | None = None
        self._is_stopped = self._listens = False

    def is_done(self, item: Item) -> bool:
        """True if the run has the checkpoint at which the piece ends, or a later one."""
        task: Training = item.payload
        return RunFolder(task.run).newest_step() >= task.until

    def do(self, item: Item) -> None:
        """Train a piece; raise `ToolkitError` if it failed or diverged."""
        if not self._listens:
            self._listens = True
            for number in stop_signals():
                signal.signal(number, self._stop)
        task: Training = item.payload
        with task.log.open("ab") as log:
            begin = log.tell()
            command = [*_PROGRAM, str(os.getpid()), *_TOOLKIT, *task.arguments]
            self._training = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            code = self._training.wait()
            self._training = None
        run, way = RunFolder(task.run), f"on the way to step {task.until:,}"
        if code == NonFiniteError.exit_code and (found := read_divergence(run)) is not None:
            raise ToolkitError(f"diverged {way}, at step {found.step:,}, which is its outcome")
        if code:
            with task.log.open("rb") as log:
                log.seek(begin)
                last = log.read().decode(errors="replace").strip().splitlines()[-_LINES_OF_AN_ERROR:]
            raise ToolkitError(f"failed {way}: exit code {code}; {task.log} ends:\n  " + "\n  ".join(last))
        if not self.is_done(item):
            if self._is_stopped:
                raise StoppedError
            saved = f"it was asked to stop and has saved step {run.newest_step():,}"
            raise ToolkitError(f"failed {way}: {saved}. The same command goes on.")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopped = True
        if self._training is None:
            sys.exit(0)
        self._training.send_signal(number)


def train_pieces(plan: StudyPlan, folder: StudyFolder, *, executor: ExecutorKind) -> bool:
    """Train all pieces; return whether it was stopped before they had ended.

    A stop (`stop_signals`) is forwarded to the training processes on this machine, which save.
    """
    if (nodes := plan.study.machine.nodes) > 1:
        raise SettingsError(
            f"machine.nodes={nodes}, but --executor {executor} trains each model on one machine. Take --executor "
            "slurm, or leave nodes out."
        )
    command = Command(folder.path, name="toolkit study", what="study", elsewhere="set study.dir to another folder")
    with command:
        command.join("", otherwise="another study file")
        job = StudyJob(command.work, plan, folder)
        view = StudyView(plan, folder, job)
        with _crew(executor, plan.study.machine, job, logs=folder.logs) as crew, stop_signals_kept():
            for number in stop_signals():
                signal.signal(number, lambda *_: crew.stop())
            with shown(view) as look:
                crew.run(look)
    if crew.is_stopped:
        left = dict.fromkeys(piece.name for piece in plan.pieces if plan.done(piece.name) < piece.until)
        rest = f"{counted(len(left), 'model')}: {first_few([*left])}" if left else "what comes after training"
        console().print(f"stopped; the same command continues with {rest}")
    return crew.is_stopped


def _item(piece: RunPiece, plan: StudyPlan, folder: StudyFolder) -> Item:
    machine, run = plan.study.machine, plan.folder(piece.name)
    arguments = ["train", str(run.settings_file), "--until", str(piece.until)]
    if machine.gpus is not None:
        arguments += ["--num-procs", str(machine.gpus)]
    if machine.ds_config is not None:
        arguments += ["--ds_config", machine.ds_config]
    training = Training(tuple(arguments), run.path, piece.until, folder.log(piece.key))
    needs = () if piece.needs is None else (str(piece.needs),)
    return Item(str(piece.key), training, group=piece.name, needs=needs)


def _crew(kind: ExecutorKind, machine: MachineSettings, job: Job, *, logs: Path) -> Crew:
    if kind is ExecutorKind.LOCAL:
        return Here(job, places=_places(machine), logs=logs)
    cluster = Cluster()
    gpus = 0 if is_cpu_wanted() else min(1, cluster.num_gpus)
    return OnRay(
        job,
        cluster=cluster,
        most=len(job.items),
        resources=Resources(machine.threads or 1, machine.gpus or gpus),
        logs=logs,
        shared="study.dir, data and the working directory",
        cpus_setting="machine.threads",
    )


def _places(machine: MachineSettings) -> Sequence[Mapping[str, str]]:
    """Environment of each run that trains in parallel."""
    if gpus := visible_gpus():
        each = machine.gpus or len(gpus)
        groups = [gpus[first : first + each] for first in range(0, len(gpus) - each + 1, each)]
        return [{VISIBLE_DEVICES: ",".join(group)} for group in groups or [gpus]]
    if machine.threads is None:
        return [{}]
    count = max(1, len(os.sched_getaffinity(0)) // (machine.threads * (machine.gpus or 1)))
    return [{"OMP_NUM_THREADS": str(machine.threads)}] * count
