"""Validation losses during a run."""

import math
from collections.abc import Collection, Iterator, Mapping

from toolkit.core.errors import NonFiniteError
from toolkit.engine.engine import Engine
from toolkit.engine.step import MicroBatch
from toolkit.objectives.base import Objective
from toolkit.training.batching import EvaluationBatches
from toolkit.training.rank_errors import RankErrors
from toolkit.training.run_state import StepInfo


class Evaluator:
    """Computes validation losses of a model in training, of each objective on each corpus; collective.

    They are due before the first step, at the end of each phase and every `every` steps (None: at no others).
    """

    def __init__(
        self,
        engine: Engine,
        batches: Mapping[str, EvaluationBatches],
        objectives: Mapping[str, Objective],
        *,
        every: int | None,
    ) -> None:
        self._engine, self._batches, self._objectives, self._every = engine, batches, objectives, every

    def is_due(self, info: StepInfo) -> bool:
        """Return whether validation losses are due after this step."""
        return info.is_start or info.is_phase_end or (self._every is not None and info.step % self._every == 0)

    def losses(self, step: int, errors: RankErrors) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        """Token means by objective name, over the rows of all corpora and for each corpus that has a name.

        A mean that is not finite ends the run; an objective without targets has none.
        """
        sums = {
            name: {corpus: self._sum(name, corpus, step, errors) for corpus in self._batches}
            for name in self._objectives
        }
        named = (corpus for corpus in self._batches if corpus)
        return _means({name: list(found.values()) for name, found in sums.items()}), {
            corpus: _means({name: [found[corpus]] for name, found in sums.items()}) for corpus in named
        }

    def _sum(self, name: str, corpus: str, step: int, errors: RankErrors) -> tuple[float, float]:
        """Weighted sum of the losses of all targets, and sum of the weights."""
        batches = self._batches[corpus]
        built = batches.of(self._objectives[name])

        def micro_batches() -> Iterator[MicroBatch]:
            for _ in range(batches.num_batches):
                batch = None
                with errors.kept():
                    batch = next(built)
                # Before every forward pass, since with ZeRO-3 a single failing rank would leave the others in it.
                errors.raise_agreed()
                assert batch is not None
                yield batch

        loss_sum, weight = self._engine.loss_sum(micro_batches())
        if not math.isfinite(loss_sum):
            where = f" on {corpus}" if corpus else ""
            raise NonFiniteError.at_step(
                step,
                f"the validation loss of {name}{where} is not finite: the weights have diverged.\n"
                "Nothing of this step was saved; the last checkpoint is intact. Try a smaller lr.peak.",
            )
        return loss_sum, weight


def _means(sums: Mapping[str, Collection[tuple[float, float]]]) -> dict[str, float]:
    totals = {name: [sum(part) for part in zip(*pairs, strict=True)] for name, pairs in sums.items()}
    return {name: loss / weight for name, (loss, weight) in totals.items() if weight}
