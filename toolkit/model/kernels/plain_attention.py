"""Attention inside segments by plain torch: where no flash kernel takes the tensors.

Under a window, products are cut by position and not by segment: their number does not grow with that of the segments.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from toolkit.core.types import AttentionKind
from toolkit.model.segments import SegmentLayout, Span

_CAUSAL_CHUNK = 128
# Neighbouring queries that share a product under a narrower window. About as wide as ModernBERT's to each side.
_SHORTEST_BAND = 64

BandProducts = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From queries, keys and values of bands, and a mask of what is seen, to the outputs."""


def attend_by_sdpa(
    query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kind: AttentionKind, layout: SegmentLayout
) -> Tensor:
    """`toolkit.model.attention.attend` by torch's attention, one call per span: for long segments, and for devices
    without a kernel here.
    """
    group = query_THE.shape[1] // key_TKE.shape[1]
    if query_THE.is_cuda and group > 1:
        # In fp32, torch's kernels there share no heads, and its plain way would keep every probability.
        key_TKE, value_TKE = (part.repeat_interleave(group, dim=1) for part in (key_TKE, value_TKE))
    # One split and one cat: slices taken one by one would each cost a zero-filled gradient of full size.
    sizes = [span.stop - span.start for span in layout.spans]
    outputs = []
    parts = (torch.split(tensor, sizes) for tensor in (query_THE, key_TKE, value_TKE))
    for query, key, value, span in zip(*parts, layout.spans, strict=True):
        if span.is_padding:
            outputs.append(torch.zeros_like(query))
            continue
        query, key, value = (
            part.view(span.count, span.length, *part.shape[1:]).transpose(1, 2) for part in (query, key, value)
        )
        output = scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=kind is AttentionKind.CAUSAL,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def attend_by_bmm(
    query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kind: AttentionKind, layout: SegmentLayout
) -> Tensor:
    """`toolkit.model.attention.attend` by batched matrix products with the probabilities kept: for the CPU and segments
    of up to about 1,000 positions.
    """
    output_THE: Tensor = _BmmAttention.apply(query_THE, key_TKE, value_TKE, kind, layout)  # type: ignore[no-untyped-call]
    return output_THE


def attend_in_window(
    query_THE: Tensor,
    key_TKE: Tensor,
    value_TKE: Tensor,
    kind: AttentionKind,
    layout: SegmentLayout,
    window: int,
    *,
    products: BandProducts,
) -> Tensor:
    """`toolkit.model.attention.attend` under a window: bands of neighbouring queries, over the keys around each.

    Args:
        products: `multiply_bands`, or torch's attention, where `attend_by_bmm` or `attend_by_sdpa` would be taken.
    """
    num_key_value_heads = key_TKE.shape[1]
    group = query_THE.shape[1] // num_key_value_heads
    if any(span.is_padding for span in layout.spans):
        # Padding is a segment of its own here: of zeros, whatever stands there, so that its output is 0 too.
        query_THE, key_TKE, value_TKE = (
            torch.where(layout.is_real_T[:, None, None], part, 0) for part in (query_THE, key_TKE, value_TKE)
        )
    length = max(window, _SHORTEST_BAND)
    around = (window, 0 if kind is AttentionKind.CAUSAL else window)
    # n bands of L queries and M keys; the query heads that share a key-value head are rows of one product.
    query_HnLE = _bands(query_THE, length, (0, 0))
    query_KnRE = query_HnLE.view(num_key_value_heads, group, *query_HnLE.shape[1:]).transpose(1, 2).flatten(2, 3)
    key_KnME, value_KnME = _bands(key_TKE, length, around), _bands(value_TKE, length, around)
    is_seen_nRM = _seen_in_bands(kind, layout, window, length, around).repeat(1, group, 1)
    output_KnRE = products(query_KnRE, key_KnME, value_KnME, is_seen_nRM)
    output_KnGLE = output_KnRE.view(num_key_value_heads, -1, group, length, query_THE.shape[2])
    return output_KnGLE.permute(1, 3, 0, 2, 4).flatten(2, 3).flatten(0, 1)[: len(query_THE)]


def multiply_bands(query_KnRE: Tensor, key_KnME: Tensor, value_KnME: Tensor, is_seen_nRM: Tensor) -> Tensor:
    """Attention of the queries of each band over the keys they see, (K, n, R, E), with the probabilities kept."""
    output_KnRE: Tensor = _BandProducts.apply(query_KnRE, key_KnME, value_KnME, is_seen_nRM)  # type: ignore[no-untyped-call]
    return output_KnRE


def _bands(tensor_THE: Tensor, length: int, around: tuple[int, int]) -> Tensor:
    """(T, H, E) -> (H, n, M, E): bands of `length` positions, with so many before and behind each; 0 beyond them."""
    bands_HnME: Tensor = _Bands.apply(tensor_THE, length, *around)  # type: ignore[no-untyped-call]
    return bands_HnME


def _seen_in_bands(
    kind: AttentionKind, layout: SegmentLayout, window: int, length: int, around: tuple[int, int]
) -> Tensor:
    """Keys that each query sees, (n, length, M) bool. All see themselves, those beyond the last position too."""
    places_T = torch.arange(len(layout.rope_positions_T), device=layout.rope_positions_T.device)
    # A segment is known by its first position.
    first_T11 = (places_T - layout.rope_positions_T + 1)[:, None, None]
    query_nL1 = _bands(first_T11, length, (0, 0))[0]
    key_n1M = _bands(first_T11, length, around)[0].transpose(1, 2)
    query_L1 = torch.arange(length, device=places_T.device)[:, None]
    distance_LM = torch.arange(-around[0], length + around[1], device=places_T.device) - query_L1
    furthest = 0 if kind is AttentionKind.CAUSAL else window
    return (query_nL1 == key_n1M) & (distance_LM >= -window) & (distance_LM <= furthest)


def _heads_first(tensor_THE: Tensor, span: Span, num_key_value_heads: int) -> Tensor:
    """(T, H, E) -> (count x K, H / K, length, E), contiguous."""
    width = tensor_THE.shape[-1]
    part = tensor_THE[span.start : span.stop].view(span.count, span.length, num_key_value_heads, -1, width)
    return part.permute(0, 2, 3, 1, 4).reshape(span.count * num_key_value_heads, -1, span.length, width)


def _put_back(target_THE: Tensor, span: Span, part: Tensor) -> None:
    """The inverse of `_heads_first`, into `target_THE`."""
    num_key_value_heads = part.shape[0] // span.count
    view = target_THE[span.start : span.stop].view(span.count, span.length, num_key_value_heads, -1, part.shape[-1])
    view.copy_(part.view(span.count, num_key_value_heads, -1, span.length, part.shape[-1]).permute(0, 3, 1, 2, 4))


def _query_chunks(length: int, kind: AttentionKind) -> list[tuple[int, int, int]]:
    """(first query, one past the last query, one past the last key) of each product over one segment."""
    if kind is AttentionKind.BIDIRECTIONAL:
        return [(0, length, length)]
    # In chunks, a causal product leaves out most of the half that the mask would hide.
    stops = [min(start + _CAUSAL_CHUNK, length) for start in range(0, length, _CAUSAL_CHUNK)]
    return [(start, stop, stop) for start, stop in zip([0, *stops], stops, strict=False)]


def _hide_later_(scores: Tensor) -> None:
    """Set to -inf, in place, what a query may not see: the square's part above the diagonal."""
    size = scores.shape[-1]
    scores.masked_fill_(torch.ones(size, size, dtype=torch.bool, device=scores.device).triu_(1), float("-inf"))


class _BmmAttention(torch.autograd.Function):
    """See `attend_by_bmm`. The query heads that share a key-value head are rows of one product."""

    @staticmethod
    def forward(
        ctx: Any, query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kind: AttentionKind, layout: SegmentLayout
    ) -> Tensor:
        num_key_value_heads, scale = key_TKE.shape[1], query_THE.shape[2] ** -0.5
        output_THE = torch.zeros_like(query_THE, memory_format=torch.contiguous_format)
        kept: list[Tensor] = []
        for span in layout.spans:
            if span.is_padding:
                continue
            # Scaling queries here and their gradients there spares two passes over the probabilities.
            query = _heads_first(query_THE, span, num_key_value_heads) * scale
            key = _heads_first(key_TKE, span, num_key_value_heads).squeeze(1)
            value = _heads_first(value_TKE, span, num_key_value_heads).squeeze(1)
            output = torch.empty_like(query)
            kept += [query, key, value]
            for first, stop, last_key in _query_chunks(span.length, kind):
                rows = query[:, :, first:stop].flatten(1, 2)
                scores = torch.bmm(rows, key[:, :last_key].transpose(1, 2))
                if kind is AttentionKind.CAUSAL:
                    _hide_later_(scores.view(*query.shape[:2], stop - first, last_key)[..., first:])
                probs = torch.softmax(scores, dim=-1)
                output[:, :, first:stop] = torch.bmm(probs, value[:, :last_key]).view_as(output[:, :, first:stop])
                kept.append(probs)
            _put_back(output_THE, span, output)
        ctx.save_for_backward(*kept)
        ctx.kind, ctx.layout, ctx.scale, ctx.num_key_value_heads = kind, layout, scale, num_key_value_heads
        return output_THE

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        (d_output_THE,) = grad_outputs
        d_query_THE = torch.zeros_like(d_output_THE, memory_format=torch.contiguous_format)
        shape_TKE = (d_output_THE.shape[0], ctx.num_key_value_heads, d_output_THE.shape[2])
        d_key_TKE, d_value_TKE = d_output_THE.new_zeros(shape_TKE), d_output_THE.new_zeros(shape_TKE)
        kept = iter(ctx.saved_tensors)
        for span in ctx.layout.spans:
            if span.is_padding:
                continue
            query, key, value = next(kept), next(kept), next(kept)
            d_output = _heads_first(d_output_THE, span, ctx.num_key_value_heads)
            d_query = torch.empty_like(query)
            d_key, d_value = torch.zeros_like(key), torch.zeros_like(value)
            for first, stop, last_key in _query_chunks(span.length, ctx.kind):
                probs = next(kept)
                d_rows = d_output[:, :, first:stop].flatten(1, 2)
                rows = query[:, :, first:stop]
                parts = _d_products(d_rows, rows.flatten(1, 2), key[:, :last_key], value[:, :last_key], probs)
                d_query[:, :, first:stop] = parts[0].view_as(rows)
                d_key[:, :last_key] += parts[1]
                d_value[:, :last_key] += parts[2]
            _put_back(d_query_THE, span, d_query.mul_(ctx.scale))
            _put_back(d_key_TKE, span, d_key[:, None])
            _put_back(d_value_TKE, span, d_value[:, None])
        return d_query_THE, d_key_TKE, d_value_TKE, None, None


class _Bands(torch.autograd.Function):
    """See `_bands`."""

    @staticmethod
    def forward(ctx: Any, tensor_THE: Tensor, length: int, before: int, behind: int) -> Tensor:
        ctx.num_positions, ctx.length, ctx.before, ctx.behind = len(tensor_THE), length, before, behind
        filling = -len(tensor_THE) % length
        padded_HTE = pad(tensor_THE.transpose(0, 1), (0, 0, before, behind + filling))
        return _overlapping(padded_HTE, length, before + length + behind).contiguous()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (d_bands_HnME,) = grad_outputs
        length, before = ctx.length, ctx.before
        own = slice(before, before + length)
        d_padded_HTE = pad(d_bands_HnME[:, :, own].flatten(1, 2), (0, 0, before, ctx.behind))
        # Neither part is longer than a band, so none overlaps with those of the neighbours.
        for part in (slice(before), slice(before + length, None)):
            _overlapping(d_padded_HTE, length, d_bands_HnME.shape[2])[:, :, part].add_(d_bands_HnME[:, :, part])
        return d_padded_HTE[:, before : before + ctx.num_positions].transpose(0, 1), None, None, None


def _overlapping(padded_HTE: Tensor, length: int, size: int) -> Tensor:
    """A view of stretches of `size` positions, one every `length`: (H, n, size, E)."""
    return padded_HTE.unfold(1, size, length).transpose(2, 3)


class _BandProducts(torch.autograd.Function):
    """See `multiply_bands`."""

    @staticmethod
    def forward(ctx: Any, query_KnRE: Tensor, key_KnME: Tensor, value_KnME: Tensor, is_seen_nRM: Tensor) -> Tensor:
        ctx.scale = query_KnRE.shape[-1] ** -0.5
        query_KnRE = query_KnRE * ctx.scale
        scores_KnRM = query_KnRE @ key_KnME.transpose(-1, -2)
        probs_KnRM = torch.softmax(scores_KnRM.masked_fill_(~is_seen_nRM, float("-inf")), dim=-1)
        ctx.save_for_backward(query_KnRE, key_KnME, value_KnME, probs_KnRM)
        return probs_KnRM @ value_KnME

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        d_query_KnRE, d_key_KnME, d_value_KnME = _d_products(grad_outputs[0], *ctx.saved_tensors)
        return d_query_KnRE.mul_(ctx.scale), d_key_KnME, d_value_KnME, None


def _d_products(
    d_output: Tensor, query: Tensor, key: Tensor, value: Tensor, probs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of (scaled) queries, keys and values of one or more products, each (..., rows, E)."""
    d_probs = d_output @ value.transpose(-1, -2)
    d_scores = torch.ops.aten._softmax_backward_data(d_probs, probs, -1, probs.dtype)
    return d_scores @ key, d_scores.transpose(-1, -2) @ query, probs.transpose(-1, -2) @ d_output
