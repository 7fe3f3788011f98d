"""Attention inside segments in plain torch, one segment after another: for tensors that no flash kernel supports."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from toolkit.core.types import AttentionKind
from toolkit.model.segments import SegmentLayout, Span

CHUNK = 128
"""Neighbouring queries per product, if a product of all queries with all keys would mostly be masked."""


def attend_by_sdpa(
    query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kind: AttentionKind, layout: SegmentLayout
) -> Tensor:
    """`toolkit.model.attention.attend` with torch's attention, one call per span: for long segments, and for devices
    without a kernel here.
    """
    group = query_THE.shape[1] // key_TKE.shape[1]
    if query_THE.is_cuda and group > 1:
        # In fp32, torch's CUDA kernels cannot share heads, and its fallback would keep every probability.
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
    query_THE: Tensor,
    key_TKE: Tensor,
    value_TKE: Tensor,
    kind: AttentionKind,
    layout: SegmentLayout,
    window: int | None = None,
) -> Tensor:
    """`toolkit.model.attention.attend` as batched matmuls that keep the probabilities: for the CPU, if a position
    sees up to about 1,000 others.
    """
    output_THE: Tensor = _BmmAttention.apply(query_THE, key_TKE, value_TKE, kind, layout, window)  # type: ignore[no-untyped-call]
    return output_THE


@dataclass(frozen=True)
class _Chunk:
    """Neighbouring queries of a segment, `first` to `stop`, and the keys that any of them sees."""

    first: int
    stop: int
    first_key: int
    stop_key: int

    def hide_(self, scores: Tensor, kind: AttentionKind, window: int | None) -> Tensor:
        """Set to -inf, in place, the scores of keys that a query may not see: (..., queries, keys)."""
        everything = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        # Index of the first query among the chunk's keys.
        own = self.first - self.first_key
        if kind is AttentionKind.CAUSAL:
            scores[..., own:].masked_fill_(everything[:, own:].triu(1), float("-inf"))
        if window is not None:
            is_far = everything.tril(own - window - 1)
            if kind is AttentionKind.BIDIRECTIONAL:
                is_far |= everything.triu(own + window + 1)
            scores.masked_fill_(is_far, float("-inf"))
        return scores


def _chunks(length: int, kind: AttentionKind, window: int | None) -> list[_Chunk]:
    """Chunks of one product each, which skip most of what would be masked."""
    is_causal = kind is AttentionKind.CAUSAL
    size = length if window is None and not is_causal else CHUNK
    window = length if window is None else window
    stops = [min(first + size, length) for first in range(0, length, size)]
    return [
        _Chunk(first, stop, max(0, first - window), stop if is_causal else min(length, stop + window))
        for first, stop in zip([0, *stops], stops, strict=False)
    ]


def narrowed(window: int | None, length: int) -> int | None:
    """The window if it hides anything in a segment of this length, else None."""
    return None if window is None or window >= length - 1 else window


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


class _BmmAttention(torch.autograd.Function):
    """See `attend_by_bmm`. The query heads that share a key-value head are rows of one product."""

    @staticmethod
    def forward(
        ctx: Any,
        query_THE: Tensor,
        key_TKE: Tensor,
        value_TKE: Tensor,
        kind: AttentionKind,
        layout: SegmentLayout,
        window: int | None,
    ) -> Tensor:
        num_key_value_heads, scale = key_TKE.shape[1], query_THE.shape[2] ** -0.5
        output_THE = torch.zeros_like(query_THE, memory_format=torch.contiguous_format)
        kept: list[Tensor] = []
        for span in layout.spans:
            if span.is_padding:
                continue
            # Scaling queries here and their gradients in the backward pass saves two passes over the probabilities.
            query = _heads_first(query_THE, span, num_key_value_heads) * scale
            key = _heads_first(key_TKE, span, num_key_value_heads).squeeze(1)
            value = _heads_first(value_TKE, span, num_key_value_heads).squeeze(1)
            output = torch.empty_like(query)
            kept += [query, key, value]
            narrow = narrowed(window, span.length)
            for chunk in _chunks(span.length, kind, narrow):
                queries, keys = slice(chunk.first, chunk.stop), slice(chunk.first_key, chunk.stop_key)
                scores = torch.bmm(query[:, :, queries].flatten(1, 2), key[:, keys].transpose(1, 2))
                chunk.hide_(scores.view(*query.shape[:2], -1, scores.shape[-1]), kind, narrow)
                probs = torch.softmax(scores, dim=-1)
                output[:, :, queries] = torch.bmm(probs, value[:, keys]).view_as(output[:, :, queries])
                kept.append(probs)
            _put_back(output_THE, span, output)
        ctx.save_for_backward(*kept)
        ctx.kind, ctx.layout, ctx.window = kind, layout, window
        ctx.scale, ctx.num_key_value_heads = scale, num_key_value_heads
        return output_THE

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
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
            for chunk in _chunks(span.length, ctx.kind, narrowed(ctx.window, span.length)):
                queries, keys = slice(chunk.first, chunk.stop), slice(chunk.first_key, chunk.stop_key)
                probs = next(kept)
                rows = query[:, :, queries]
                parts = d_products(
                    d_output[:, :, queries].flatten(1, 2), rows.flatten(1, 2), key[:, keys], value[:, keys], probs
                )
                d_query[:, :, queries] = parts[0].view_as(rows)
                d_key[:, keys] += parts[1]
                d_value[:, keys] += parts[2]
            _put_back(d_query_THE, span, d_query.mul_(ctx.scale))
            _put_back(d_key_TKE, span, d_key[:, None])
            _put_back(d_value_TKE, span, d_value[:, None])
        return d_query_THE, d_key_TKE, d_value_TKE, None, None, None


def d_products(
    d_output: Tensor, query: Tensor, key: Tensor, value: Tensor, probs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of (scaled) queries, keys and values of one or more products, each (..., rows, E)."""
    d_probs = d_output @ value.transpose(-1, -2)
    d_scores = torch.ops.aten._softmax_backward_data(d_probs, probs, -1, probs.dtype)
    return d_scores @ key, d_scores.transpose(-1, -2) @ query, probs.transpose(-1, -2) @ d_output
