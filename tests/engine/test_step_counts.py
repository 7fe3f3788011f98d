"""What a step does besides arithmetic, counted: reads by the host, garbage collections. Ways to sum gradients agree.

Also how often the host waits for a GPU: on a CPU, DeepSpeed leaves those lines out, so its accelerator is replaced by
one that answers as CUDA's does.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator, set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.micro_batches import random_micro_batches
from toolkit.engine.ds_config import read_ds_config, resolve_ds_config
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
            largest_parameter=97 * 64,
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


class _Waiter:
    """A stream or an event of `_LikeCUDA`: all work is done, and waits of the host for it are counted."""

    waits = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        _Waiter.waits += 1

    def query(self) -> bool:
        return True

    def wait_on_device(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = record = wait_on_device


class _LikeCUDA(CPU_Accelerator):
    """A CPU whose answers are those of a device that works by itself."""

    Stream = Event = _Waiter

    def is_synchronized_device(self) -> bool:
        return False

    def synchronize(self, device_index: int | None = None) -> None:
        _Waiter.waits += 1

    def current_stream(self, device_index: int | None = None) -> _Waiter:
        return _Waiter()

    default_stream = current_stream


@contextmanager
def _like_cuda() -> Iterator[None]:
    before = get_accelerator()
    set_accelerator(_LikeCUDA())
    try:
        # Of streams of its own, a tensor on a CPU knows nothing.
        with mock.patch.object(torch.Tensor, "record_stream"):
            yield
    finally:
        set_accelerator(before)


@dataclass(frozen=True)
class Waits:
    """Two steps with a shipped file; gives how often the host waits for the device in the second."""

    file: str
    accumulation: int
    overlap_comm: bool | None = None

    def __call__(self) -> int:
        """Run them."""
        ranks, config = join_ranks(), read_ds_config(self.file)
        if self.overlap_comm is not None:
            config["zero_optimization"]["overlap_comm"] = self.overlap_comm
        plan = batch_plan(self.accumulation * ranks.world_size, 1, data_parallel=ranks.world_size)
        resolved = resolve_ds_config(
            config, batch=plan, grad_clip=1.0, precision="bf16", source="test", largest_parameter=97 * 64
        )
        with _like_cuda():
            engine = Engine(tiny_encoder(seed=0), config=resolved, optimizer=OptimizerSettings(), ranks=ranks)
            for step in range(2):
                _Waiter.waits = 0
                batches = random_micro_batches(step, ranks.rank, accumulation=self.accumulation, length=_LENGTH)
                terms = [LossTerm(self.accumulation * _LENGTH * ranks.world_size)]
                engine.train_step(batches, terms=terms, learning_rate=1e-2)
            waits = _Waiter.waits
            engine.close()
        return waits


def test_waits_for_a_gpu() -> None:
    """With a stream for reductions, one after each backward pass; at stage 3 it is always there, and the step waits."""
    expected = {
        Waits("zero1", 1): 0, Waits("zero1", 3): 0,
        Waits("zero2", 1): 1, Waits("zero2", 3): 3,
        Waits("zero2", 1, overlap_comm=False): 0, Waits("zero2", 3, overlap_comm=False): 0,
        Waits("zero3", 1): 2, Waits("zero3", 3): 4,
        Waits("zero3", 3, overlap_comm=False): 4,
    }  # fmt: skip
    found = run_distributed(list(expected), world_size=2)
    assert dict(zip(expected, found, strict=True)) == {case: [waits, waits] for case, waits in expected.items()}


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
