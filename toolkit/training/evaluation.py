"""Validation losses during a run."""

import math
from collections.abc import Iterator, Mapping

from toolkit.core.errors import NonFiniteError
from toolkit.engine.engine import Engine, MicroBatch
from toolkit.objectives.base import Objective
from toolkit.training.batching import EvaluationBatches
from toolkit.training.rank_errors import RankErrors
from toolkit.training.run_state import StepInfo


class Evaluator:
    """Takes validation losses of a model in training, of each objective; collective.

    They are taken before the first step, at the end of each phase and, unless it is None, `every` so many steps.
    """

    def __init__(
        self, engine: Engine, batches: EvaluationBatches, objectives: Mapping[str, Objective], *, every: int | None
    ) -> None:
        self._engine, self._batches, self._objectives, self._every = engine, batches, objectives, every

    def is_due(self, info: StepInfo) -> bool:
        """True where validation losses are taken after this step."""
        return info.is_start or info.is_phase_end or (self._every is not None and info.step % self._every == 0)

    def losses(self, step: int, errors: RankErrors) -> dict[str, float]:
        """Token means over the validation rows by name of the objective; one that is not finite ends the run."""
        return {name: self._loss(name, step, errors) for name in self._objectives}

    def _loss(self, name: str, step: int, errors: RankErrors) -> float:
        objective, num_targets = self._objectives[name], 0

        def micro_batches() -> Iterator[MicroBatch]:
            nonlocal num_targets
            built = self._batches.of(objective)
            for _ in range(self._batches.num_batches):
                count = 0
                with errors.kept():
                    batch, count = next(built)
                # Before every forward pass, since with ZeRO-3 a rank that failed alone would leave the others in it.
                num_targets += errors.sum_counts(count)[0]
                yield batch

        loss_sum = self._engine.loss_sum(micro_batches(), attention=objective.attention)
        loss = loss_sum / max(num_targets, 1)
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"step {step}: the validation loss of {name} is not finite: the weights have diverged.\n"
                "Nothing of this step was saved; the last checkpoint is intact. Try a smaller lr.peak."
            )
        return loss
