"""Trial of a flash kernel before a run uses it: its results are compared with those of plain attention."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from toolkit.core.types import AttentionKind
from toolkit.model.attention import attend_by_flash
from toolkit.model.kernels.flash import FlashKernel
from toolkit.model.kernels.plain_attention import attend_by_bmm
from toolkit.model.segments import SegmentLayout

# Heads of queries, keys, values, and the output's gradient: query heads share key-value heads.
_HEADS = (4, 2, 2, 4)
# A third of a stretch if no layer has a window; and the widest window tried, since plain attention is quadratic.
_THIRD, _WIDEST_WINDOW = 128, 1024
_NAMES = ("the output", "the gradient of queries", "the gradient of keys", "the gradient of values")
# Largest |difference| / |plain attention's|, the latter in fp32 on the same rounded inputs: a few rounding errors.
_TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 5e-3, torch.float32: 1e-4}


def try_kernel(
    kernel: FlashKernel, device: torch.device, dtype: torch.dtype, head_size: int, window: int | None
) -> None:
    """Compare a kernel with plain attention of both kinds, forward and backward, on random inputs with shared heads.

    Stretches are three windows long, since kernels drop a window that covers a stretch; in one case, one has no query.
    Raise `RuntimeError` if a result differs; any error of the kernel is passed on.
    """
    window = window and min(window, _WIDEST_WINDOW)
    stretch = 3 * (window or _THIRD)
    segments_BS = np.repeat([1, 2, 3], [stretch, _THIRD, stretch])[None]
    some_N = np.flatnonzero(segments_BS[0] != 2)[::3]
    draws = torch.Generator().manual_seed(0)
    inputs = [torch.randn(segments_BS.size, heads, head_size, generator=draws).to(device, dtype) for heads in _HEADS]
    layout = SegmentLayout.from_segments(segments_BS, device=device, positions_N=some_N)
    everywhere_T, targets_N = (torch.as_tensor(at, device=device) for at in (np.arange(segments_BS.size), some_N))
    cases = [(kind, each, everywhere_T) for each in dict.fromkeys((None, window)) for kind in AttentionKind]
    for kind, each, at_N in [*cases, (AttentionKind.BIDIRECTIONAL, None, targets_N)]:
        query_THE, key_TKE, value_TKE, d_output_THE = inputs
        positions_N = None if at_N is everywhere_T else at_N
        flash = partial(attend_by_flash, kind=kind, layout=layout, window=each, kernel=kernel, positions_N=positions_N)
        found = _results(flash, (query_THE[at_N], key_TKE, value_TKE), d_output_THE[at_N])
        plain = partial(attend_by_bmm, kind=kind, layout=layout, window=each)
        d_wide_THE = torch.zeros_like(d_output_THE, dtype=torch.float32)
        d_wide_THE[at_N] = d_output_THE[at_N].float()
        output_THE, d_query_THE, *others = _results(plain, [part.float() for part in inputs[:3]], d_wide_THE)
        expected = (output_THE[at_N], d_query_THE[at_N], *others)
        for name, ours, theirs in zip(_NAMES, found, expected, strict=True):
            difference = float((ours.float() - theirs).norm() / theirs.norm())
            # Written so that NaN fails too.
            if not difference <= _TOLERANCES[dtype]:
                under = "" if each is None else f" under a window of {each}"
                raise RuntimeError(
                    f"{name} of {kind.value} attention{under} differs by {difference:.1%} from plain torch's"
                )


def _results(attend: Callable[..., Tensor], inputs: Sequence[Tensor], d_output: Tensor) -> tuple[Tensor, ...]:
    """The output and the gradients of queries, keys and values."""
    leaves = [part.detach().requires_grad_() for part in inputs]
    output = attend(*leaves)
    return output.detach(), *torch.autograd.grad(output, leaves, d_output)
