"""Sliding-window attention in plain torch, all segments at once: for tensors that no flash kernel supports.

Positions are cut into bands of neighbouring queries, regardless of segments, each with the keys around it; a mask hides
other segments and keys outside of the window. So the number of products does not grow with that of the segments.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from toolkit.core.types import AttentionKind
from toolkit.model.kernels.plain_attention import CHUNK, d_products
from toolkit.model.segments import SegmentLayout

# Queries per band under a narrower window. About ModernBERT's window to each side.
_SHORTEST_BAND = 64
# Fixed cost of a product in 16 bits, in multiplications (measured: oneDNN on Zen 4).
_NUMBERS_PER_PRODUCT = 2_000_000

BandProducts = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
"""From queries (K, n, Q, E), keys and values (K, Z, E), a mask (1, n, Q, X) of seen keys, and A to (K, n, Q, E).

There are n bands of A queries and X keys; band i has the keys from i x A on, of Z padded positions. The Q = A x H / K
queries that share a key-value head are rows of one product.
"""


def attend_in_bands(
    query_THE: Tensor,
    key_TKE: Tensor,
    value_TKE: Tensor,
    kind: AttentionKind,
    layout: SegmentLayout,
    window: int,
    *,
    products: BandProducts,
) -> Tensor:
    """`toolkit.model.attention.attend` under a window.

    Args:
        products: `multiply_bands` or `attend_bands_by_sdpa`.
    """
    num_key_value_heads = key_TKE.shape[1]
    group = query_THE.shape[1] // num_key_value_heads
    has_padding = any(span.is_padding for span in layout.spans)
    is_real_T11 = layout.is_real_T[:, None, None]
    if has_padding:
        # Padding is a segment of its own here, zeroed since masked keys are multiplied too, and 0 x NaN is NaN.
        query_THE, key_TKE, value_TKE = (torch.where(is_real_T11, part, 0) for part in (query_THE, key_TKE, value_TKE))
    length, before, after = _band(kind, window)
    query_HTE = _padded(query_THE, length)
    query_KGnAE = query_HTE.view(num_key_value_heads, group, -1, length, query_HTE.shape[-1])
    # With all four dimensions: with a 3-D mask, torch's attention would keep every probability.
    is_seen_1nQX = _seen_in_bands(kind, layout, window).repeat(1, group, 1)[None]
    output_KnQE = products(
        query_KGnAE.transpose(1, 2).flatten(2, 3),
        _padded(key_TKE, length, before, after),
        _padded(value_TKE, length, before, after),
        is_seen_1nQX,
        length,
    )
    output_KnGAE = output_KnQE.view(num_key_value_heads, -1, group, length, query_THE.shape[2])
    output_THE = output_KnGAE.permute(1, 3, 0, 2, 4).flatten(2, 3).flatten(0, 1)[: len(query_THE)]
    return torch.where(is_real_T11, output_THE, 0) if has_padding else output_THE


def bands_are_cheaper(query_THE: Tensor, kind: AttentionKind, layout: SegmentLayout, window: int) -> bool:
    """True if `attend_in_bands` is faster than `attend_by_bmm` on a CPU.

    In 16 bits a product has a fixed cost, whatever its size, and bands need few of them. In fp32 it has none, and
    products per segment multiply less.
    """
    if query_THE.dtype.itemsize > 2:
        return False
    length, before, after = _band(kind, window)
    width = query_THE[0].numel()
    by_segment = 0
    for span in layout.spans:
        if not span.is_padding:
            by_segment += span.count * span.length * min(span.length, CHUNK + before + after) * width
            by_segment += _NUMBERS_PER_PRODUCT * -(-span.length // CHUNK)
    return len(query_THE) * (length + before + after) * width <= by_segment


def multiply_bands(query_KnQE: Tensor, key_KZE: Tensor, value_KZE: Tensor, is_seen_1nQX: Tensor, length: int) -> Tensor:
    """`BandProducts` as batched matmuls that keep the probabilities, like `attend_by_bmm`."""
    output_KnQE: Tensor = _BandProducts.apply(query_KnQE, key_KZE, value_KZE, is_seen_1nQX, length)  # type: ignore[no-untyped-call]
    return output_KnQE


def attend_bands_by_sdpa(
    query_KnQE: Tensor, key_KZE: Tensor, value_KZE: Tensor, is_seen_1nQX: Tensor, length: int
) -> Tensor:
    """`BandProducts` with torch's attention, like `attend_by_sdpa`."""
    key_KnXE, value_KnXE = (_bands(part, length, is_seen_1nQX.shape[-1]) for part in (key_KZE, value_KZE))
    return scaled_dot_product_attention(query_KnQE, key_KnXE, value_KnXE, attn_mask=is_seen_1nQX)


def _band(kind: AttentionKind, window: int) -> tuple[int, int, int]:
    """Numbers of queries in a band, and of keys before and after them."""
    return max(window, _SHORTEST_BAND), window, 0 if kind is AttentionKind.CAUSAL else window


def _padded(tensor_THE: Tensor, length: int, before: int = 0, after: int = 0) -> Tensor:
    """(T, H, E) -> (H, Z, E): zero-padded to a multiple of `length`, plus `before` and `after`."""
    return pad(tensor_THE.transpose(0, 1), (0, 0, before, after + -len(tensor_THE) % length))


def _bands(padded_HZE: Tensor, length: int, size: int) -> Tensor:
    """Stretches of `size` positions, one every `length`: (H, n, size, E)."""
    return padded_HZE.unfold(1, size, length).transpose(2, 3).contiguous()


def _seen_in_bands(kind: AttentionKind, layout: SegmentLayout, window: int) -> Tensor:
    """Mask of the keys that each query sees, (n, A, X) bool. All see themselves, even beyond the last position."""
    length, before, after = _band(kind, window)
    places_T = torch.arange(len(layout.rope_positions_T), device=layout.rope_positions_T.device)
    # A segment is identified by its first position.
    first_T11 = (places_T - layout.rope_positions_T + 1)[:, None, None]
    query_nA1 = _padded(first_T11, length).view(-1, length, 1)
    key_n1X = _bands(_padded(first_T11, length, before, after), length, before + length + after)[0].transpose(1, 2)
    query_A1 = torch.arange(length, device=places_T.device)[:, None]
    distance_AX = torch.arange(-before, length + after, device=places_T.device) - query_A1
    return (query_nA1 == key_n1X) & (distance_AX >= -window) & (distance_AX <= after)


class _BandProducts(torch.autograd.Function):
    """See `multiply_bands`. Saves keys and values once, not once per band."""

    @staticmethod
    def forward(
        ctx: Any, query_KnQE: Tensor, key_KZE: Tensor, value_KZE: Tensor, is_seen_1nQX: Tensor, length: int
    ) -> Tensor:
        ctx.length, ctx.scale = length, query_KnQE.shape[-1] ** -0.5
        query_KnQE = query_KnQE * ctx.scale
        key_KnXE, value_KnXE = (_bands(part, length, is_seen_1nQX.shape[-1]) for part in (key_KZE, value_KZE))
        scores_KnQX = query_KnQE @ key_KnXE.transpose(2, 3)
        probs_KnQX = torch.softmax(scores_KnQX.masked_fill_(~is_seen_1nQX, float("-inf")), dim=-1)
        ctx.save_for_backward(query_KnQE, key_KZE, value_KZE, probs_KnQX)
        return probs_KnQX @ value_KnXE

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query_KnQE, key_KZE, value_KZE, probs_KnQX = ctx.saved_tensors
        key_KnXE, value_KnXE = (_bands(part, ctx.length, probs_KnQX.shape[-1]) for part in (key_KZE, value_KZE))
        d_query_KnQE, *d_parts = d_products(grad_outputs[0], query_KnQE, key_KnXE, value_KnXE, probs_KnQX)
        d_key_KZE, d_value_KZE = (_summed(part, key_KZE, ctx.length) for part in d_parts)
        return d_query_KnQE.mul_(ctx.scale), d_key_KZE, d_value_KZE, None, None


def _summed(d_bands_KnXE: Tensor, padded_KZE: Tensor, length: int) -> Tensor:
    """Gradient of padded positions, summed over the bands that contain them."""
    d_padded_KZE = torch.zeros_like(padded_KZE)
    size = d_bands_KnXE.shape[2]
    for first in range(0, size, length):
        # No longer than the stride between bands, so that these parts do not overlap.
        part = slice(first, first + length)
        d_padded_KZE.unfold(1, size, length).transpose(2, 3)[:, :, part].add_(d_bands_KnXE[:, :, part])
    return d_padded_KZE
