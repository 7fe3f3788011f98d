"""Logged steps: which steps are logged, the line each gets, and the writers of lines.

The line is made once; metrics.jsonl, TensorBoard and Weights & Biases get the same numbers.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, cast

from toolkit.core.errors import UserError, is_out_of_room
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.identity import snapshot
from toolkit.run.metrics import Losses, MetricsFile, MetricsLine, scalars
from toolkit.training.hooks import Hook
from toolkit.training.run_state import RunState, StepInfo, StepMetrics
from toolkit.training.speed import Speed
from toolkit.training.wandb_writer import WandbWriter


class LineWriter(Protocol):
    """Writer of logged steps, into a file or folder."""

    path: Path

    def append(self, line: MetricsLine) -> None:
        """Write the line of one step."""

    def close(self, error: BaseException | None) -> None:
        """Called at the end of the process; `error` is what ended the run, if anything did."""


class LogHook(Hook):
    """Writes logged steps: every `every`-th, evaluated ones, spikes, the last of each phase and of the process.

    A line that a writer could not write is retried with the next one, and at the end, so that none is lost.
    """

    keeps_what_failed = True

    def __init__(self, writers: Sequence[LineWriter], *, every: int, speed: Speed) -> None:
        self._writers, self._every, self._speed = writers, every, speed
        self._waiting: list[deque[MetricsLine]] = [deque() for _ in writers]
        self._eval_losses: Losses = {}
        self._last: tuple[StepInfo, StepMetrics] | None = None

    def after_evaluation(self, info: StepInfo, losses: Losses) -> None:
        """Keep the losses for the line of the step; before the first step, write a line."""
        self._eval_losses = losses
        if info.is_start:
            self._write(info, {"tokens": info.state.tokens})

    def after_step(self, info: StepInfo, metrics: StepMetrics) -> None:
        """Write the line of a logged step."""
        self._speed.add(metrics)
        is_due = info.is_phase_end or info.step % self._every == 0
        self._last = (info, metrics)
        if self._eval_losses or is_due or metrics.spike:
            self._log()

    def on_end(self, state: RunState) -> None:
        """Write the line of the last step: a run may continue from there, and the lines of both are one history."""
        self._log()

    def _log(self) -> None:
        if self._last is None:
            return
        (info, metrics), self._last = self._last, None
        measured: MetricsLine = {
            "loss": metrics.loss,
            "targets": metrics.counts.targets,
            "tokens": info.state.tokens,
            "learning_rate": metrics.learning_rate,
            "grad_norm": metrics.grad_norm,
        }
        if len(names := info.phase.objectives) > 1:
            measured["losses"] = dict(metrics.means)
            measured["targets"] = dict(zip(names, metrics.counts.targets_P, strict=True))
        if metrics.spike:
            measured["spike"] = "told" if metrics.is_applied else "skipped"
        measured.update(cast(MetricsLine, self._speed.take()))
        self._write(info, measured)

    def close(self, error: BaseException | None) -> None:
        """Close all writers."""
        with ExitStack() as stack:
            for writer in self._writers:
                stack.enter_context(_naming(writer))
                stack.callback(writer.close, error)
            self._catch_up()

    def _write(self, info: StepInfo, measured: MetricsLine) -> None:
        line: MetricsLine = {
            "step": info.step,
            "phase": info.phase.index,
            "objective": info.phase.objective,
            "attention": str(info.attention),
        }
        line.update(measured)
        line["data_digest"] = info.state.digest.hex()
        if self._eval_losses:
            line["eval_loss"] = dict(self._eval_losses)
        self._eval_losses = {}
        for waiting in self._waiting:
            waiting.append(line)
        self._catch_up()

    def _catch_up(self) -> None:
        for writer, waiting in zip(self._writers, self._waiting, strict=True):
            while waiting:
                with _naming(writer):
                    writer.append(waiting[0])
                waiting.popleft()


@contextmanager
def _naming(writer: LineWriter) -> Iterator[None]:
    """Add the file and a remedy to an OSError in writing, which names neither."""
    try:
        yield
    except OSError as error:
        remedy = "Free space there" if is_out_of_room(error) else "Allow writing there"
        raise UserError(
            f"could not write {writer.path}: {error.strerror or error}.\n{remedy} or set run.dir to another folder; "
            "checkpoints already saved are intact, and the same command resumes from the newest."
        ) from error


class TensorBoardWriter:
    """RUN_DIR/tensorboard; an earlier attempt's steps after `resumed_step` are purged, all at a fresh start (None)."""

    def __init__(self, folder: Path, *, resumed_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder
        # A fresh start also rewrites the validation losses before the first update.
        self._writer = SummaryWriter(str(folder), purge_step=0 if resumed_step is None else resumed_step + 1)

    def append(self, line: MetricsLine) -> None:
        """Write the scalars of a logged step."""
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, line["step"])

    def close(self, error: BaseException | None) -> None:
        """Close the file."""
        self._writer.close()


def open_writers(run: DeclaredRun, *, resumed_step: int | None) -> list[LineWriter]:
    """Writers that `[log]` asks for, of a run that resumes from a step (None: a fresh start)."""
    log, folder = run.settings.log, run.folder
    writers: list[LineWriter] = [MetricsFile(folder, resumed_step=resumed_step)]
    if log.tensorboard:
        writers.append(TensorBoardWriter(folder.tensorboard, resumed_step=resumed_step))
    if log.wandb:
        project = log.wandb if isinstance(log.wandb, str) else None
        writers.append(WandbWriter(folder, project=project, resumed_step=resumed_step, settings=snapshot(run.settings)))
    return writers
