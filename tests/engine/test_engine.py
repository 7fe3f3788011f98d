"""The engine around DeepSpeed: errors that are a user's to mend, the norm at stage 0, and garbage collection."""

import gc
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from toolkit.core.errors import SettingsError
from toolkit.engine import engine as module
from toolkit.engine.ds_config import resolve_ds_config
from toolkit.engine.engine import Engine, gradient_norm
from toolkit.engine.optimizer import OptimizerSettings
from toolkit.engine.ranks import join_ranks
from toolkit.parallel.topology import batch_plan
from toolkit.testing.distributed import run_distributed
from toolkit.testing.models import tiny_encoder


@dataclass(frozen=True)
class RejectedConfig:
    """An engine with these values in its file; the error that it ends with."""

    values: tuple[tuple[str, Any], ...]

    def __call__(self) -> tuple[str, bool]:
        ranks = join_ranks()
        config = resolve_ds_config(
            {"zero_optimization": {"stage": 2}, **dict(self.values)},
            batch=batch_plan(4, 1, data_parallel=ranks.data_parallel_size),
            grad_clip=0.0,
            precision="fp32",
            source="file.json",
            largest_parameter=97 * 64,
        )
        try:
            Engine(tiny_encoder(seed=0), config=config, optimizer=OptimizerSettings(), ranks=ranks)
        except SettingsError as error:
            return str(error), error.is_agreed
        return "no error", False


_REJECTED = {
    "comms_logger": {"comms_logger": True},
    "checkpoint": {"checkpoint": "x"},
    "unknown key 'nonsense'": {"zero_optimization": {"stage": 2, "nonsense": 3}},
}


def test_what_deepspeed_rejects_is_the_users_to_mend_and_told_once() -> None:
    """Whatever kind of exception it raises; all ranks agree, so that rank 0 alone tells it."""
    cases = [RejectedConfig(tuple(values.items())) for values in _REJECTED.values()]
    for found, answers in zip(_REJECTED, run_distributed(cases, world_size=2), strict=True):
        for message, is_agreed in answers:
            assert is_agreed, found
            assert message.startswith("DeepSpeed rejects its configuration")
            assert found in message or found in ("comms_logger", "checkpoint"), message
            assert "--ds-config" in message


@pytest.mark.parametrize("layout", ["zero1", "zero2"])
def test_offloading_with_the_key_that_deepspeed_names(layout: str) -> None:
    zero = {"stage": int(layout[-1]), "offload_optimizer": {"device": "cpu"}}
    values = (("zero_optimization", zero), ("zero_force_ds_cpu_optimizer", False))
    assert run_distributed([RejectedConfig(values)], world_size=1) == [[("no error", False)]]


@dataclass(frozen=True)
class CollectorVisits:
    """Objects that garbage collection visits before there is an engine, while there is one, and after it."""

    def __call__(self) -> list[int]:
        gc.unfreeze()
        gc.get_freeze_count = lambda: 0
        ranks = join_ranks()
        batch = batch_plan(4, 1, data_parallel=1)
        config = resolve_ds_config(
            {}, batch=batch, grad_clip=0.0, precision="fp32", source="file.json", largest_parameter=97 * 64
        )
        visits = [len(gc.get_objects())]
        engine = Engine(tiny_encoder(seed=0), config=config, optimizer=OptimizerSettings(), ranks=ranks)
        visits.append(len(gc.get_objects()))
        engine.close()
        return [*visits, len(gc.get_objects())]


def test_garbage_collection_passes_over_what_was_there_before_training() -> None:
    """With it, each collection would take as long as several steps of a small model on a GPU."""
    (((before, during, after),),) = run_distributed([CollectorVisits()], world_size=1)
    assert during < before / 100
    assert after > before / 2


class _LargestMade(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            self.numbers = max(self.numbers, result.numel())
        return result


def test_the_norm_of_gradients_makes_no_whole_copy_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NORM_PIECE", 1000)
    encoder = tiny_encoder(seed=0)
    for parameter in encoder.parameters():
        parameter.grad = torch.randn_like(parameter)
    encoder.model.norm.weight.grad = None
    gradients = [parameter.grad.flatten() for parameter in encoder.parameters() if parameter.grad is not None]
    with _LargestMade() as made:
        norm = gradient_norm(encoder)
    assert norm == pytest.approx(float(torch.cat(gradients).double().norm()), rel=1e-12)
    assert made.numbers == 1000
