"""What watches a run: validation, the screen, checkpoints. (Logged steps have a file of their own.)

Evaluation comes first, since the others show its losses; checkpoints last, so that what they save was written down.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.checkpoint.retention import retain
from toolkit.checkpoint.settings import CheckpointSettings
from toolkit.core.console import progress
from toolkit.core.errors import NonFiniteError
from toolkit.data import Rows
from toolkit.engine.engine import Engine, MicroBatch
from toolkit.engine.saving import save_checkpoint
from toolkit.objectives.base import Objective
from toolkit.objectives.schedule import Schedule
from toolkit.training.batching import evaluation_batches
from toolkit.training.loop import Hook
from toolkit.training.state import RunState, StepRecord


class EvaluationHook(Hook):
    """Validation losses before the first step, every `every` steps and at the end of each phase.

    Args:
        engine: of the run.
        rows: of the validation corpus, the first `num_rows` of which are used.
        objectives: whose losses to take, by name.
        micro_batch_rows: rows in a forward pass.
        every: steps between evaluations, or None.
        seed: of the run.
    """

    def __init__(
        self,
        engine: Engine,
        rows: Rows,
        objectives: Mapping[str, Objective],
        *,
        num_rows: int,
        micro_batch_rows: int,
        every: int | None,
        seed: int,
    ) -> None:
        self._engine, self._rows, self._objectives = engine, rows, objectives
        self._num_rows, self._micro_batch_rows, self._every, self._seed = num_rows, micro_batch_rows, every, seed

    def after_step(self, state: RunState, record: StepRecord) -> None:
        """Fill in `record.eval_loss` where it is due."""
        is_due = self._every is not None and record.step % self._every == 0
        if record.step == 0 or record.is_phase_end or is_due:
            record.eval_loss = {name: self._loss(name, record.step) for name in self._objectives}

    def _loss(self, name: str, step: int) -> float:
        objective = self._objectives[name]
        ranks, counts = self._engine.ranks, []
        shares = evaluation_batches(
            self._rows,
            objective,
            num_rows=self._num_rows,
            micro_batch_rows=self._micro_batch_rows,
            rank=ranks.rank,
            world_size=ranks.world_size,
            seed=self._seed,
            device=ranks.device,
        )

        def batches() -> Iterator[MicroBatch]:
            for batch, count in shares:
                counts.append(count)
                yield batch

        loss_sum = self._engine.loss_sum(batches(), attention=objective.attention)
        (num_targets,) = ranks.sum_counts(sum(counts))
        loss = loss_sum / max(num_targets, 1)
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"step {step}: the validation loss of {name} is not finite: the weights are beyond repair.\n"
                "Nothing of this step was saved; the last checkpoint is whole. Try a smaller lr.peak."
            )
        return loss


class ConsoleHook(Hook):
    """Shows the run, on rank 0: progress, each change of phase, each evaluation."""

    def __init__(self, schedule: Schedule, *, first_step: int) -> None:
        self._schedule, self._first_step = schedule, first_step
        self._stack = ExitStack()
        self._progress = self._stack.enter_context(
            progress("pretrain", total=schedule.total_steps - first_step, unit="steps")
        )
        self._phase: int | None = None

    def after_step(self, state: RunState, record: StepRecord) -> None:
        """Say what is new."""
        if record.phase != self._phase:
            self._phase = record.phase
            stop = self._schedule.phases[record.phase].stop
            self._progress.say(
                f"phase {record.phase + 1} of {len(self._schedule.phases)}: {record.objective}, "
                f"{record.attention} attention, up to step {stop:,}"
            )
        if record.loss is not None:
            rate = record.step_tokens / record.seconds if record.seconds else 0.0
            note = f"step {record.step:,} {record.objective} loss {record.loss:.3f}, {rate:,.0f} tokens/s"
            self._progress.update(record.step - self._first_step, note)
        if record.eval_loss:
            losses = ", ".join(f"{name} {loss:.3f}" for name, loss in record.eval_loss.items())
            self._progress.say(f"step {record.step:,}: validation loss {losses}")

    def close(self) -> None:
        """Take the bar off the screen."""
        self._stack.close()


class CheckpointHook(Hook):
    """Saves at multiples of `every` and of `keep_every`, and where the process ends; collective.

    Args:
        engine: of the run.
        root: RUN_DIR/checkpoints.
        settings: when, and what stays.
        manifest: of this run; where it stands is filled in at each save.
        tokenizer_folder: of the training corpus.
        first_step: the step this process started from, which is saved already.
        rows_per_step: G.
    """

    def __init__(
        self,
        engine: Engine,
        root: Path,
        settings: CheckpointSettings,
        *,
        manifest: CheckpointManifest,
        tokenizer_folder: Path,
        first_step: int,
        rows_per_step: int,
    ) -> None:
        self._engine, self._root, self._settings, self._manifest = engine, root, settings, manifest
        self._tokenizer_folder, self._rows_per_step = tokenizer_folder, rows_per_step
        self._saved_step = first_step
        self._losses: dict[str, float] = dict(manifest.losses)

    def after_step(self, state: RunState, record: StepRecord) -> None:
        """Save where it is due."""
        if record.loss is not None:
            self._losses[f"train/{record.objective}"] = record.loss
        self._losses |= {f"validation/{name}": loss for name, loss in record.eval_loss.items()}
        if state.step and self._settings.is_due(state.step):
            self._save(state)

    def on_end(self, state: RunState) -> None:
        """Save the last step, unless it is saved already."""
        if state.step > self._saved_step:
            self._save(state)

    def _save(self, state: RunState) -> None:
        manifest = self._manifest.model_copy(
            update={
                "step": state.step,
                "optimizer_step": self._manifest.optimizer_step + state.step,
                "tokens": state.tokens,
                "data_position": state.step * self._rows_per_step,
                "data_digest": state.digest.hex(),
                "losses": dict(self._losses),
            }
        )
        save_checkpoint(self._engine, self._root, manifest=manifest, tokenizer_folder=self._tokenizer_folder)
        self._saved_step = state.step
        if self._engine.ranks.rank == 0:
            retain(self._root, keep=self._settings.keep, keep_every=self._settings.keep_every)
