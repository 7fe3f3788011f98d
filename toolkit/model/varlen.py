"""Flash attention over stretches of one long list, on a CUDA device: torch's own kernel, or the flash-attn package's.

Both take where each stretch begins as an int32 tensor on the device, so that no call waits for the device.

Shapes: T positions in a micro-batch, H query heads, K key-value heads, E width of one head, M entries of the bounds.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from toolkit.core.types import AttentionKind

VarlenKernel = Callable[[Tensor, Tensor, Tensor, Tensor, int, AttentionKind], Tensor]
"""(query (T, H, E), key (T, K, E), value (T, K, E), bounds (M,) int32 from 0 to T, longest, kind) -> (T, H, E).

Stretch i is bounds[i] to bounds[i + 1] - 1 and may be empty; each attends to itself only.
"""

_DTYPES = (torch.bfloat16, torch.float16)
_WIDEST_HEAD = 256
# Ampere. Both kernels end a run on an older device, which can do bf16 in its own way.
_OLDEST_CAPABILITY = (8, 0)


def suits_varlen(query_THE: Tensor) -> bool:
    """Whether flash attention takes tensors of this device, dtype and head width."""
    width = query_THE.shape[-1]
    is_shaped = query_THE.dtype in _DTYPES and width % 8 == 0 and width <= _WIDEST_HEAD
    return query_THE.is_cuda and is_shaped and _capability(query_THE.device) >= _OLDEST_CAPABILITY


def repeat_key_value_heads(part_TKE: Tensor, num_heads: int) -> Tensor:
    """Keys or values with a copy for each query head that reads them, (T, H, E), for kernels that share no heads."""
    group = num_heads // part_TKE.shape[1]
    return part_TKE if group == 1 else part_TKE.repeat_interleave(group, dim=1)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@cache
def varlen_kernel() -> VarlenKernel | None:
    """The kernel of this installation: torch's, else that of the flash-attn package, else None."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return _flash_attn_kernel()
    parameters = inspect.signature(varlen_attn).parameters
    if "window_size" not in parameters:
        return _flash_attn_kernel()
    # torch 2.11 has no such argument: there each query head gets a copy of the key and value head that it reads.
    shares_heads = "enable_gqa" in parameters

    def attend(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, kind: AttentionKind) -> Tensor:
        # A window of (-1, 0) is everything before and nothing after.
        options: dict[str, Any] = {"window_size": (-1, 0) if kind is AttentionKind.CAUSAL else (-1, -1)}
        if shares_heads:
            options["enable_gqa"] = query.shape[1] != key.shape[1]
        else:
            key, value = (repeat_key_value_heads(part, query.shape[1]) for part in (key, value))
        output = varlen_attn(query, key, value, bounds, bounds, longest, longest, **options)
        assert isinstance(output, Tensor), "no auxiliary outputs were asked for"
        return output

    return attend


def _flash_attn_kernel() -> VarlenKernel | None:
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        return None

    def attend(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, kind: AttentionKind) -> Tensor:
        is_causal = kind is AttentionKind.CAUSAL
        output: Tensor = flash_attn_varlen_func(query, key, value, bounds, bounds, longest, longest, causal=is_causal)
        return output

    return attend
