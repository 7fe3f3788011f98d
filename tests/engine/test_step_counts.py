"""What a step does besides arithmetic, counted: reads by the host, garbage collections. Ways to sum gradients agree."""

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.micro_batches import random_micro_batches
from toolkit.engine.ds_config import resolve_ds_config
from toolkit.engine.engine import Engine
from toolkit.engine.optimizer import OptimizerSettings
from toolkit.engine.ranks import join_ranks
from toolkit.engine.step import LossTerm
from toolkit.parallel.topology import batch_plan
from toolkit.testing.distributed import run_distributed
from toolkit.testing.models import tiny_encoder

_LENGTH, _STEPS = 16, 4


class _Reads(TorchDispatchMode):
    """Counts tensors whose number the host asks for."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func.overloadpacket is torch.ops.aten._local_scalar_dense
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Counted:
    """Some steps in bf16; gives their losses, reads of the last one, and garbage collections in all of them."""

    stage: int
    accumulation: int = 4
    file: tuple[tuple[str, Any], ...] = ()

    def __call__(self) -> tuple[list[float], int, int]:
        """Run them."""
        ranks = join_ranks()
        config = resolve_ds_config(
            {"zero_optimization": {"stage": self.stage}, **dict(self.file)},
            batch=batch_plan(self.accumulation * ranks.world_size, 1, data_parallel=ranks.world_size),
            grad_clip=1.0,
            precision="bf16",
            source="file.json",
        )
        engine = Engine(tiny_encoder(seed=0), config=config, optimizer=OptimizerSettings(), ranks=ranks)
        collections: list[str] = []

        def note(phase: str, info: dict[str, int]) -> None:
            collections.append(phase)

        gc.callbacks.append(note)
        losses = []
        for step in range(_STEPS):
            batches = random_micro_batches(step, ranks.rank, accumulation=self.accumulation, length=_LENGTH)
            with _Reads() as reads:
                result = engine.train_step(
                    batches,
                    terms=[LossTerm(self.accumulation * _LENGTH * ranks.world_size)],
                    learning_rate=1e-2,
                )
            losses.append(result.loss)
        gc.callbacks.remove(note)
        found = losses, reads.count, len(collections)
        engine.close()
        return found


def test_a_step_costs_the_host_the_same_however_many_micro_batches_it_has() -> None:
    few, many, stage2 = run_distributed(
        [Counted(1, accumulation=1), Counted(1, accumulation=6), Counted(2)], world_size=1
    )
    assert few[0][1] == many[0][1]
    # Of single numbers, all DeepSpeed's: whether the norm is finite, whether to clip, the norm, and at stage 2 a flag.
    # Ours is one list (`Ranks.sum_with_flags`), once a step (tests/training/test_steps_ahead.py).
    assert (many[0][1], stage2[0][1]) == (3, 4)
    assert [found[0][2] for found in (few, many, stage2)] == [0, 0, 0]


def test_stages_and_ways_to_accumulate_give_the_same_losses() -> None:
    """Gradients that are added to their fp32 sums at once, or after the backward pass; at stage 1, or at stage 2."""
    cases = [Counted(1), Counted(1, file=(("bf16", {"immediate_grad_update": False}),)), Counted(2)]
    at_once, later, stage2 = run_distributed(cases, world_size=2)
    for found in (later, stage2):
        np.testing.assert_allclose(found[0][0], at_once[0][0], rtol=1e-6)
