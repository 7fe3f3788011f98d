"""Pieces of a study, trained by workers: as many at a time as the GPUs or cores of a machine, or of a cluster, hold."""

import os
import signal
from contextlib import closing
from pathlib import Path

from rich.live import Live

from toolkit.core.console import console
from toolkit.core.errors import SettingsError
from toolkit.core.signals import stop_signals, stop_signals_kept
from toolkit.core.text import counted, first_few
from toolkit.engine.gpus import visible_gpus
from toolkit.execution.local import LocalExecutor
from toolkit.execution.ray_actors import RayExecutor
from toolkit.execution.ray_cluster import Cluster
from toolkit.execution.scheduling import run_work
from toolkit.execution.work import NOBODY, Event, Executor, Failed, Lost, Resources, Work, WorkShare
from toolkit.experiments.study.declaration import MachineSettings
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.live import StudyState, shown
from toolkit.experiments.study.plan import PieceKey, RunPiece, StudyPlan
from toolkit.experiments.study.worker import PieceTask
from toolkit.work.start import ExecutorKind

RUNNER = "toolkit.experiments.study.worker:PieceRunner"
"""Name of what trains pieces, as `LocalExecutor` takes it."""


def train_pieces(plan: StudyPlan, folder: StudyFolder, *, executor: ExecutorKind) -> bool:
    """Train all pieces; True where it was stopped before they had ended.

    A stop (`stop_signals`) is passed on to what trains on this machine, which saves.
    """
    if (nodes := plan.study.machine.nodes) > 1:
        raise SettingsError(
            f"machine.nodes={nodes}, but --executor {executor} trains each model on one machine. Take --executor "
            "slurm, or leave nodes out."
        )
    items, state = [_work(piece, plan, folder) for piece in plan.pieces], StudyState(plan, folder)
    opened = closing(_executor(executor, plan.study.machine, most=len(items), logs=folder.logs))
    with opened as workers, shown(state) as live, stop_signals_kept():
        reporter = _Reporter(plan, state, workers, live)
        for number in stop_signals():
            signal.signal(number, lambda *_: reporter.stop())
        try:
            run_work(items, workers, share=reporter, observer=reporter)
        except _StoppedError:
            return True
    return False


def _executor(kind: ExecutorKind, machine: MachineSettings, *, most: int, logs: Path) -> LocalExecutor | RayExecutor:
    if kind is ExecutorKind.LOCAL:
        return LocalExecutor(RUNNER, environments=_places(machine), logs=logs)
    cluster = Cluster()
    return RayExecutor(
        cluster,
        RUNNER,
        most=most,
        resources=Resources(machine.threads or 1, gpus=machine.gpus or min(1, cluster.num_gpus)),
        logs=logs,
        shared="study.dir, data and the working directory",
        cpus_setting="machine.threads",
    )


def _work(piece: RunPiece, plan: StudyPlan, folder: StudyFolder) -> Work:
    machine = plan.study.machine
    arguments = ["train", str(plan.folder(piece.name).settings_file), "--until", str(piece.until)]
    if machine.gpus is not None:
        arguments += ["--num-procs", str(machine.gpus)]
    if machine.ds_config is not None:
        arguments += ["--ds_config", machine.ds_config]
    task = PieceTask(tuple(arguments), plan.folder(piece.name), piece.until, folder.log(*piece.key))
    return Work(piece.key, task, group=piece.name, needs=() if piece.needs is None else (piece.needs,))


def _places(machine: MachineSettings) -> list[dict[str, str]]:
    """The environment of each run that trains beside the others."""
    if gpus := visible_gpus():
        each = machine.gpus or len(gpus)
        groups = [gpus[first : first + each] for first in range(0, len(gpus) - each + 1, each)]
        return [{"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in groups or [gpus]]
    if machine.threads is None:
        return [{}]
    count = max(1, len(os.sched_getaffinity(0)) // (machine.threads * (machine.gpus or 1)))
    return [{"OMP_NUM_THREADS": str(machine.threads)}] * count


class _StoppedError(Exception):
    """What was training has saved and ended."""


class _Reporter(WorkShare):
    """Says when a piece begins and ends, or draws the tree; once a stop was asked for, passes it on, and ends the loop
    with the last.
    """

    def __init__(self, plan: StudyPlan, state: StudyState, executor: Executor, live: Live | None) -> None:
        self._plan, self._state, self._executor, self._live = plan, state, executor, live
        self._screen = console() if live is None else live.console
        self._pieces = {piece.key: piece for piece in plan.pieces}
        self._is_stopped = False

    def stop(self) -> None:
        """Ask what trains to save and end."""
        self._is_stopped = True
        if isinstance(self._executor, LocalExecutor):
            for pid in self._executor.process_ids:
                os.kill(pid, signal.SIGTERM)
        else:
            raise _StoppedError

    def claim(self, name: str) -> bool:
        """Nothing begins behind a stop."""
        return not self._is_stopped

    def on_start(self, worker: int, key: PieceKey) -> None:
        piece = self._pieces[key]
        self._state.begin(key)
        if self._live is None:
            self._screen.print(f"{piece.name}: from step {piece.first:,} to {piece.until:,}")

    def on_event(self, event: Event) -> None:
        name, until = event.key
        self._state.end(event)
        if self._is_stopped:
            # Before a worker that was lost is replaced.
            self.on_look()
        elif isinstance(event, Failed):
            needs = self._pieces[event.key].needs
            why = f"failed on the way to step {until:,}: {event.message}"
            if event.worker == NOBODY and needs is not None:
                why = f"not started on the way to step {until:,}: it needs step {needs[1]:,} of {needs[0]}"
            self._screen.print(f"{name}: {why}")
        elif isinstance(event, Lost):
            self._screen.print(f"{name}: lost on the way to step {until:,} ({event.reason}); it is started again")
        elif self._live is None:
            self._screen.print(f"{name}: done up to step {until:,}")

    def on_look(self) -> None:
        if self._live is not None:
            self._state.read()
            self._live.refresh()
        if self._is_stopped and not self._state.running:
            left = list(
                dict.fromkeys(piece.name for piece in self._plan.pieces if self._plan.done(piece.name) < piece.until)
            )
            self._screen.print(
                f"stopped; the same command goes on with {counted(len(left), 'model')}: {first_few(left)}"
            )
            raise _StoppedError
