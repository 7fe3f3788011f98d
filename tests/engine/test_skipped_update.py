"""A step whose loss is too large leaves no trace in weights, moments and AdamW's count, at any ZeRO stage."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.support.micro_batches import random_micro_batches
from toolkit.engine.ds_config import resolve_ds_config
from toolkit.engine.engine import Engine
from toolkit.engine.optimizer import OptimizerSettings
from toolkit.engine.optimizer_state import collect
from toolkit.engine.ranks import join_ranks
from toolkit.engine.step import LossTerm, StepResult
from toolkit.parallel.topology import batch_plan
from toolkit.testing.distributed import run_distributed
from toolkit.testing.models import tiny_encoder

_ACCUMULATION, _LENGTH = 2, 16


@dataclass(frozen=True)
class Trained:
    """Three steps, or the first and the last of them; gives each step's result and the state at the end."""

    stage: int
    precision: str
    largest_losses: tuple[float | None, ...]
    """Of the three steps; None: the step is never made."""

    def __call__(self) -> tuple[list[StepResult], int, dict[str, Any]]:
        ranks = join_ranks()
        zero = {"stage": self.stage} | ({"stage3_param_persistence_threshold": 0} if self.stage == 3 else {})
        config = resolve_ds_config(
            {"zero_optimization": zero},
            batch=batch_plan(_ACCUMULATION * ranks.world_size, 1, data_parallel=ranks.world_size),
            grad_clip=1.0,
            precision=self.precision,
            source="file.json",
            largest_parameter=97 * 64,
        )
        engine = Engine(tiny_encoder(seed=0), config=config, optimizer=OptimizerSettings(), ranks=ranks)
        results = []
        for step, largest in enumerate(self.largest_losses):
            if largest is not None:
                results.append(
                    engine.train_step(
                        random_micro_batches(step, ranks.rank, accumulation=_ACCUMULATION, length=_LENGTH),
                        terms=[LossTerm(_ACCUMULATION * _LENGTH * ranks.world_size, largest_mean=largest)],
                        learning_rate=1e-2,
                    )
                )
        states = {
            state.name: [part.numpy() for part in (state.weight, state.exp_avg, state.exp_avg_sq)]
            for state in collect(engine, is_mine=lambda name: True)
        }
        steps = engine.optimizer_step
        engine.close()
        return results, steps, states


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_state_is_that_of_a_run_which_never_made_the_step(world_size: int) -> None:
    kinds = [(0, "fp32"), *((stage, precision) for stage in (1, 2, 3) for precision in ("fp32", "bf16"))]
    inf = float("inf")
    cases = [Trained(*kind, losses) for kind in kinds for losses in ((inf, 0.0, inf), (inf, None, inf))]
    found = run_distributed(cases, world_size=world_size)
    for kind, passed_over, never_made in zip(kinds, found[::2], found[1::2], strict=True):
        for (results, steps, states), (others, other_steps, expected) in zip(passed_over, never_made, strict=True):
            assert [result.is_applied for result in results] == [True, False, True], kind
            assert results[1].grad_norm > 0, kind
            assert [results[0], results[2]] == others, kind
            assert steps == other_steps == 2, kind
            differing = [
                name
                for name, tensors in states.items()
                if not all(np.array_equal(*pair) for pair in zip(tensors, expected[name], strict=True))
            ]
            assert differing == [], kind
            assert states.keys() == expected.keys()
