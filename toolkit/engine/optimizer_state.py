"""Weights and optimizer state of DeepSpeed's engines by parameter name: collected for a checkpoint, and restored.

Whole tensors go through the public `safe_get_full_*` and `safe_set_full_*`. Four operations have no public function in
DeepSpeed 0.19.8 and use names inside its optimizer classes: linking the moments of all parameter groups, creating the
moments before they can be set, copying restored master weights to the bf16 weights, and setting partitions of stage 3,
where the public function fails on the last rank if a parameter's size is not a multiple of the number of ranks.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from toolkit.checkpoint.read import ParameterState
from toolkit.engine.engine import Engine
from toolkit.parallel.shares import share_of

# Where each optimizer class keeps its flat fp32 partitions.
_FLAT_PARTITIONS = (
    "single_partition_of_fp32_groups",  # DeepSpeedZeroOptimizer, stages 1 and 2
    "fp32_groups_flat_partition",  # BF16_Optimizer, stage 1 with fp32 accumulation
    "fp32_partitioned_groups_flat",  # DeepSpeedZeroOptimizer_Stage3
)


def stage_sizes(engine: Engine) -> dict[str, int]:
    """Number of elements of each whole parameter that this stage writes, by name."""
    return {name: whole_shape(parameter).numel() for name, parameter in _of_stage(engine)}


def collect(engine: Engine, *, is_mine: Callable[[str], bool]) -> Iterator[ParameterState]:
    """Whole state of every parameter of this stage whose name satisfies `is_mine`, on the CPU in fp32.

    Collective: all ranks must exhaust it, each keeping its own part. A rank has one whole parameter in memory at a time
    besides those it keeps.
    """
    _find_moments(engine)
    for name, parameter in _of_stage(engine):
        tensors = [_joined(engine, parameter, tensor) for tensor in _full(engine, parameter)]
        if is_mine(name):
            # Copies, since the engine keeps writing to its own tensors.
            copies = (tensor.detach().to("cpu", torch.float32, copy=True).contiguous() for tensor in tensors)
            yield ParameterState(name, *copies)


def _of_stage(engine: Engine) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters of this stage; one that two stages hold (tied weights) is assigned to the first of them."""
    named = engine.named_parameters().items()
    return [(name, parameter) for name, parameter in named if not getattr(parameter, "ds_pipe_replicated", False)]


def whole_shape(parameter: torch.nn.Parameter) -> torch.Size:
    """Shape of a whole parameter, of which this rank may have only a part."""
    if (share := share_of(parameter)) is not None:
        return torch.Size(share.whole_shape)
    # Under ZeRO-3 a parameter is empty between uses.
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def _joined(engine: Engine, parameter: torch.nn.Parameter, tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor, gathered if ranks have shares of it."""
    share = share_of(parameter)
    if share is None:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(share.num_shares)]
    dist.all_gather(parts, tensor.contiguous(), group=engine.ranks.groups.tensor)
    return share.join(parts)


def restore(engine: Engine, read: Callable[[str], ParameterState | None], *, optimizer_step: int) -> None:
    """Set weights, moments and the optimizer's step of a fresh engine.

    `read` returns a whole parameter by name, or None if this rank has no part of it. Every rank calls it with all names
    of the model, in the same order.
    """
    optimizer, own = engine.deepspeed.optimizer, engine.named_parameters()
    if engine.zero_stage > 0:
        _make_moments_exist(optimizer, optimizer_step)
    for name in engine.parameter_names:
        if (whole := read(name)) is None:
            continue
        parameter, state = own[name], _shared(own[name], whole)
        if engine.zero_stage == 0:
            optimizer.state[parameter] = _moments(parameter.data, optimizer_step)
            for tensor, found in zip(_full(engine, parameter), state.tensors, strict=True):
                tensor.copy_(found)
        elif engine.zero_stage == 3:
            _set_partition(engine, parameter, state)
        else:
            _set_full(parameter, state)
    if hasattr(optimizer, "update_lp_params"):
        optimizer.update_lp_params()


def _shared(parameter: torch.nn.Parameter, state: ParameterState) -> ParameterState:
    """This rank's share of a whole parameter, or the whole if it has no shares."""
    if (share := share_of(parameter)) is None:
        return state
    return ParameterState(state.name, *(share.take(tensor) for tensor in state.tensors))


def _full(engine: Engine, parameter: torch.nn.Parameter) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if engine.zero_stage == 0:
        state = engine.deepspeed.optimizer.state[parameter]
        return parameter.data, state["exp_avg"], state["exp_avg_sq"]
    return (
        safe_get_full_fp32_param(parameter),
        safe_get_full_optimizer_state(parameter, "exp_avg"),
        safe_get_full_optimizer_state(parameter, "exp_avg_sq"),
    )


def _find_moments(engine: Engine) -> None:
    """Link parameters to their moments, which are zero before the first step."""
    optimizer = engine.deepspeed.optimizer
    if engine.zero_stage > 0:
        if not optimizer.optimizer.state:
            _make_moments_exist(optimizer, 0)
        _link_moments(optimizer)
        return
    for parameter in engine.named_parameters().values():
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = _moments(parameter, 0)


def _moments(parameter: torch.Tensor, step: int) -> dict[str, torch.Tensor]:
    """A fresh optimizer's state for a parameter, except for the count of updates, `step`."""
    return {
        "step": torch.tensor(float(step), device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


def _make_moments_exist(optimizer: Any, optimizer_step: int) -> None:
    """Create zero moments: the functions that set state look it up first, and a fresh optimizer has none."""
    attribute = next(name for name in _FLAT_PARTITIONS if hasattr(optimizer, name))
    for flat in getattr(optimizer, attribute):
        optimizer.optimizer.state[flat] = _moments(flat, optimizer_step)
    _link_moments(optimizer)


def _link_moments(optimizer: Any) -> None:
    """Link parameters to their moments. DeepSpeed links only once, after the first of several groups has stepped."""
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()


def _set_full(parameter: torch.nn.Parameter, state: ParameterState) -> None:
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    device = parameter.device
    safe_set_full_fp32_param(parameter, state.weight.to(device))
    safe_set_full_optimizer_state(parameter, state.exp_avg.to(device), "exp_avg")
    safe_set_full_optimizer_state(parameter, state.exp_avg_sq.to(device), "exp_avg_sq")


def _set_partition(engine: Engine, parameter: torch.nn.Parameter, state: ParameterState) -> None:
    """Stage 3: set this rank's slice of the flattened parameter, zero-padded to a multiple of the number of ranks."""
    from deepspeed import zero
    from deepspeed.utils import safe_get_local_fp32_param, safe_set_local_fp32_param, safe_set_local_optimizer_state

    ranks = engine.ranks
    share = safe_get_local_fp32_param(parameter).numel()

    def mine(full: torch.Tensor) -> torch.Tensor:
        padded = torch.zeros(share * ranks.data_parallel_size)
        padded[: full.numel()] = full.flatten()
        return padded.narrow(0, share * ranks.data_rank, share).to(ranks.device)

    with zero.GatheredParameters([parameter], modifier_rank=0):
        if ranks.data_rank == 0:
            parameter.data.copy_(state.weight)
    safe_set_local_fp32_param(parameter, mine(state.weight))
    safe_set_local_optimizer_state(parameter, mine(state.exp_avg), "exp_avg")
    safe_set_local_optimizer_state(parameter, mine(state.exp_avg_sq), "exp_avg_sq")
