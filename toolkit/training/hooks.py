"""Hooks: observers of a run on rank 0. Logged steps and their writers have a file of their own."""

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from toolkit.checkpoint.folders import half_removed, step_name
from toolkit.checkpoint.retention import CheckpointSettings, drop_moments, retain
from toolkit.core.console import progress
from toolkit.objectives.base import Objective
from toolkit.objectives.mixture import attention_of
from toolkit.objectives.schedule import Phase
from toolkit.run.metrics import BestStep, Losses, by_corpus
from toolkit.run.step_plan import StepPlan
from toolkit.training.rank_errors import RankErrors
from toolkit.training.run_state import RunState, StepInfo, StepMetrics

_log = logging.getLogger(__name__)


class Hook:
    """Observer of a run on one rank, without collectives. Methods that a hook does not need do nothing.

    Attributes:
        keeps_what_failed: whether it is still called after an error, since it retries what it could not write.
    """

    keeps_what_failed = False

    def on_start(self, info: StepInfo) -> None:
        """Called before the first step of this process."""

    def after_evaluation(self, info: StepInfo, losses: Losses) -> None:
        """Called with an evaluation's losses: at step 0 after `on_start`, else before `after_step`."""

    def after_step(self, info: StepInfo, metrics: StepMetrics) -> None:
        """Called after each update, and after its evaluation if one is due."""

    def on_checkpoint(self, step: int) -> None:
        """Called after the checkpoint of a step has appeared: some steps later, but before the next checkpoint."""

    def on_end(self, state: RunState) -> None:
        """Called after the last step of this process, finished or stopped; not after an error."""

    def close(self, error: BaseException | None) -> None:
        """Called at the very end; `error` is what ended the run, if anything did."""


class HookList:
    """Hooks of a rank, called in order. A hook that fails stops neither the others nor, at once, the run; it is not
    called again, except to be closed at the end or if it `keeps_what_failed`.
    """

    def __init__(self, hooks: Sequence[Hook], errors: RankErrors) -> None:
        self._hooks, self._errors = hooks, errors
        self._running = list(hooks)

    def each(self, moment: Callable[[Hook], None]) -> None:
        """Call a method of each hook, such as `lambda hook: hook.on_checkpoint(step)`."""
        for hook in tuple(self._running):
            has_passed = False
            with self._errors.kept():
                moment(hook)
                has_passed = True
            if not (has_passed or hook.keeps_what_failed):
                self._running.remove(hook)

    def close(self, error: BaseException | None) -> None:
        """Close each hook."""
        for hook in self._hooks:
            try:
                hook.close(error)
            except Exception as raised:
                # After an error, that one is reported, and ranks no longer exchange anything.
                if error is not None:
                    _log.warning("%s could not be closed: %s", type(hook).__name__, raised)
                with self._errors.kept():
                    raise


class ConsoleHook(Hook):
    """Shows the run: progress, each change of phase, each evaluation."""

    def __init__(self, plan: StepPlan, objectives: Mapping[str, Objective], *, stop: int) -> None:
        self._plan, self._schedule, self._objectives, self._stop = plan, plan.schedule, objectives, stop
        self._stack = ExitStack()

    def on_start(self, info: StepInfo) -> None:
        """Show the bar, and name the phase."""
        self._first_step = info.step
        steps = progress("pretrain", total=self._stop - info.step, unit="steps")
        self._progress = self._stack.enter_context(steps)
        self._say_phase(info.phase)

    def after_evaluation(self, info: StepInfo, losses: Losses) -> None:
        """Show validation losses."""
        shown = "; ".join(
            f"{corpus}: ".removeprefix(": ")
            + (", ".join(f"{name} {loss:.3f}" for name, loss in found.items()) or "no targets")
            for corpus, found in by_corpus(losses).items()
        )
        self._progress.say(f"step {info.step:,}: validation loss {shown}")

    def after_step(self, info: StepInfo, metrics: StepMetrics) -> None:
        """Show the loss, and a spike; at the end of a phase, name the next."""
        if metrics.spike:
            self._progress.say(metrics.spike)
        rate = metrics.counts.tokens / metrics.seconds if metrics.seconds else 0.0
        note = f"step {info.step:,} {info.phase.objective} loss {metrics.loss:.3f}, {rate:,.0f} tokens/s"
        self._progress.update(info.step - self._first_step, note)
        if info.is_phase_end and info.step < self._stop:
            self._say_phase(self._schedule.phase_at(info.step))

    def say(self, text: str) -> None:
        """Print a line, between `on_start` and `close`."""
        self._progress.say(text)

    def close(self, error: BaseException | None) -> None:
        """Remove the bar from the screen."""
        self._stack.close()

    def _say_phase(self, phase: Phase) -> None:
        attention = attention_of([self._objectives[name] for name in phase.objectives])
        self._progress.say(
            f"phase {phase.index + 1} of {len(self._schedule.phases)}: {phase.shares}, {attention} attention, "
            f"up to step {phase.stop:,}{self._plan.describe_changes(phase)}"
        )


class RetentionHook(Hook):
    """Deletes checkpoints that need not be kept; `in_use` contains the steps of those still to be read."""

    def __init__(
        self,
        root: Path,
        settings: CheckpointSettings,
        *,
        say: Callable[[str], object],
        in_use: Container[int] = (),
        best: Callable[[], BestStep | None] = lambda: None,
    ) -> None:
        self._root, self._settings, self._in_use, self._say, self._best = root, settings, in_use, say, best
        self._is_told = False

    def on_checkpoint(self, step: int) -> None:
        """Delete older checkpoints."""
        self._retain()

    def on_end(self, state: RunState) -> None:
        """Delete checkpoints that were in use at the last one, and name the best."""
        self._retain()
        if (best := self._best()) is not None:
            self._say(
                f"lowest validation loss: {best.loss:.4f} at step {best.step:,} ({self._root / step_name(best.step)})"
            )

    def _retain(self) -> None:
        best, settings = self._best(), self._settings

        def is_kept(step: int) -> bool:
            return settings.is_kept(step) or (best is not None and step == best.step)

        retain(self._root, keep=settings.keep, is_kept=is_kept, in_use=self._in_use)
        if settings.keep_weights_only:
            drop_moments(self._root, settings.keep, in_use=self._in_use)
        if not self._is_told and (left := half_removed(self._root)):
            self._is_told = True
            self._say(f"{left} (its files may be open elsewhere). Each new checkpoint tries again.")
