"""DeepSpeed's engine around a module, and the parameter attributes that it reads."""

import io
from contextlib import redirect_stdout, suppress
from typing import Any

import torch

from toolkit.core.errors import SettingsError
from toolkit.engine.ds_config import deepspeed_error_message
from toolkit.engine.ranks import Ranks
from toolkit.parallel.groups import ProcessGroups
from toolkit.parallel.shares import share_of


def count_once_(module: torch.nn.Module, *, tp_rank: int, copy: torch.nn.Parameter | None = None) -> None:
    """Set the attributes by which DeepSpeed counts each weight once in the gradient norm, over all ranks that have it.

    The first tensor-parallel rank counts weights that are replicated on all of them. An earlier stage counts `copy`,
    the tied weight of this one.
    """
    for parameter in module.parameters():
        is_counted = share_of(parameter) is not None or tp_rank == 0
        parameter.ds_pipe_replicated = parameter is copy  # type: ignore[attr-defined]
        parameter.tensor_model_parallel = is_counted and parameter is not copy  # type: ignore[attr-defined]


def initialize_deepspeed(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    config: dict[str, Any],
    *,
    ranks: Ranks,
    mpu: ProcessGroups | None,
) -> Any:
    """Build DeepSpeed's engine around a module.

    `mpu` has the groups if DeepSpeed should not make its own: one for all ranks, or those of a pipeline. Raise
    `SettingsError` for an error that a change of the configuration would fix.
    """
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError
    from deepspeed.runtime.zero.utils import ZeRORuntimeException

    _import_muon_uncompiled()
    try:
        # Reads only the user's file, and fails on wrong types in many ways.
        DeepSpeedConfig(config, mpu=ranks.groups)
    except Exception as error:
        raise SettingsError(deepspeed_error_message(error)) from error
    try:
        # Some of its optimizers print their memory use.
        with redirect_stdout(io.StringIO()):
            engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config, mpu=mpu)
    except (DeepSpeedConfigError, ZeRORuntimeException, AssertionError, ValueError) as error:
        raise SettingsError(deepspeed_error_message(error)) from error
    return engine


def _import_muon_uncompiled() -> None:
    """Import, without compiling, an optimizer that no run uses but that DeepSpeed imports with any optimizer.

    Its import compiles functions, for which torch would load its compiler: two seconds of each rank's start.
    """
    from deepspeed.runtime import compiler

    compile_ = compiler.compile
    compiler.compile = lambda: lambda function: function
    try:
        with suppress(ImportError):
            import deepspeed.runtime.zero.muon.original_muon  # noqa: F401
    finally:
        compiler.compile = compile_
