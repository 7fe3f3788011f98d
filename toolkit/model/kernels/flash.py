"""Flash attention over stretches of one packed list of positions, on a CUDA device: torch's operator.

It takes the start of each stretch as an int32 tensor on the device, so that no call waits for the device, and the
compiler includes it in the surrounding graph.

The operator is called by name: `torch.nn.attention.varlen` may choose cuDNN's, which rebuilds its plan in every call
(pytorch pull request 191576), and does not share heads under torch 2.11.

N may count any positions with a query, not only targets.
"""

from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from toolkit.core.types import AttentionKind

_DTYPES = (torch.bfloat16, torch.float16)
_WIDEST_HEAD = 256
# Ampere. On an older device, which may still compute in bf16, the kernel would end the run.
_OLDEST_CAPABILITY = (8, 0)


FlashKernel = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int, int, AttentionKind, int | None], Tensor]
"""Attention with the signature of `torch_flash`."""
BlockKernel = FlashKernel | Literal["automatic"] | None
"""Kernel of a block's attention: a flash kernel, plain torch (None), or ("automatic") whichever of the two suits the
tensors, for a model for which no run has chosen."""


def suits_flash(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """True if flash attention supports tensors of this device, dtype and head width."""
    is_shaped = dtype in _DTYPES and head_size % 8 == 0 and head_size <= _WIDEST_HEAD
    return device.type == "cuda" and is_shaped and capability(device) >= _OLDEST_CAPABILITY


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Major and minor compute capability of a CUDA device."""
    return torch.cuda.get_device_capability(device)


def flash_kernel() -> FlashKernel | None:
    """`torch_flash`, or None if torch was built without it."""
    return torch_flash if torch.backends.cuda.is_flash_attention_available() else None


def torch_flash(
    query_NHE: Tensor,
    key_TKE: Tensor,
    value_TKE: Tensor,
    query_bounds_M: Tensor,
    key_bounds_M: Tensor,
    longest_queries: int,
    longest_keys: int,
    kind: AttentionKind,
    window: int | None = None,
) -> Tensor:
    """Attention of stretches of queries over stretches of keys, both in order and contiguous: (N, H, E).

    Computed by FlashAttention-2, or by the kernel registered in its place for torch's operator.

    Args:
        query_NHE: (N, H, E).
        key_TKE: (T, K, E); query head h reads key-value head h // (H / K).
        value_TKE: (T, K, E).
        query_bounds_M: int32, from 0 to N: stretch i is bounds[i] to bounds[i + 1] - 1 and may be empty.
        key_bounds_M: likewise, from 0 to T.
        longest_queries: an upper bound on the queries of a stretch.
        longest_keys: likewise on its keys.
        kind: causal requires as many queries as keys.
        window: positions seen on each side of a query, excluding it; requires as many queries as keys. None: no limit.
    """
    is_causal = kind is AttentionKind.CAUSAL
    reach = -1 if window is None else window
    # 0.0: no dropout. A window of (-1, 0) is everything before and nothing after.
    output_NHE, *_ = torch.ops.aten._flash_attention_forward(
        query_NHE,
        key_TKE,
        value_TKE,
        query_bounds_M,
        key_bounds_M,
        longest_queries,
        longest_keys,
        0.0,
        is_causal,
        return_debug_mask=False,
        window_size_left=reach,
        window_size_right=0 if is_causal else reach,
    )
    assert isinstance(output_NHE, Tensor)
    return output_NHE
