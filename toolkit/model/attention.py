"""Attention inside segments, of either kind, by whichever kernel suits the place.

Attention is a description: a kind and a `SegmentLayout`. No (S, S) mask crosses a function boundary. No position sees
padding, and padding sees nothing: its output is 0 and so is its gradient.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from toolkit.core.types import AttentionKind
from toolkit.model.kernels.flash import FlashKernel, flash_kernel, suits_flash
from toolkit.model.segments import MixedRows, SegmentLayout, Span

_LONGEST_FOR_BMM = 1024
_CAUSAL_CHUNK = 128


@dataclass(frozen=True, eq=False)
class SegmentAttention:
    """`attend` for one forward pass, as its blocks call it."""

    kind: AttentionKind
    layout: SegmentLayout

    def __call__(
        self,
        query_THE: Tensor,
        key_TKE: Tensor,
        value_TKE: Tensor,
        kernel: FlashKernel | None,
        positions_N: Tensor | None = None,
    ) -> Tensor:
        """See `attend`.

        Args:
            kernel: that the compiler takes into the block's graph, one for all layouts. None: whichever suits the
                tensors; a compiled block does not look inside, so that neither layout nor kind compiles it again.
            positions_N: of the targets, where `query_THE` has theirs alone, (N, H, E); see `takes_targets`.
        """
        if kernel is None:
            output_THE: Tensor = self._attend_uncompiled(query_THE, key_TKE, value_TKE)
            return output_THE
        return attend_by_flash(
            query_THE, key_TKE, value_TKE, self.kind, self.layout, kernel=kernel, positions_N=positions_N
        )

    def takes_targets(self, kernel: FlashKernel | None) -> bool:
        """Queries may be those of the targets alone: the layout knows them, and they see all of their segments.

        A causal kernel would count queries and keys from their ends. Without a flash kernel, products over equally many
        queries of equally long segments are few, and those over targets would be one for each segment.
        """
        # In this order: compiled code without a kernel does not ask for the kind, which would make it another graph.
        return kernel is not None and self.layout.targets is not None and self.kind is AttentionKind.BIDIRECTIONAL

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _attend_uncompiled(self, query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor) -> Tensor:
        return attend(query_THE, key_TKE, value_TKE, self.kind, self.layout)


@dataclass(frozen=True, eq=False)
class MixedAttention:
    """The same for a micro-batch of both kinds."""

    rows: MixedRows

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(
        self,
        query_THE: Tensor,
        key_TKE: Tensor,
        value_TKE: Tensor,
        kernel: FlashKernel | None,
        positions_N: Tensor | None = None,
    ) -> Tensor:
        """See `SegmentAttention`; outside of every graph, which would be another one for each number of causal rows.

        So the kernel is whichever suits the tensors, and queries are never those of the targets alone.
        """
        causal, bidirectional = self.rows.causal, self.rows.bidirectional
        sizes = [causal.is_real_T.numel(), bidirectional.is_real_T.numel()]
        # One split and one cat, as in `attend_by_sdpa`.
        query, key, value = (torch.split(part, sizes) for part in (query_THE, key_TKE, value_TKE))
        return torch.cat(
            [
                attend(query[0], key[0], value[0], AttentionKind.CAUSAL, causal),
                attend(query[1], key[1], value[1], AttentionKind.BIDIRECTIONAL, bidirectional),
            ]
        )

    def takes_targets(self, kernel: FlashKernel | None) -> bool:
        """Never: see `__call__`."""
        return False


def attend(query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kind: AttentionKind, layout: SegmentLayout) -> Tensor:
    """Attention of every position over its own segment, (T, H, E); 0 at padding. By whichever kernel suits the tensors.

    Args:
        query_THE: rotated queries, (T, H, E).
        key_TKE: rotated keys, (T, K, E); query head h reads key-value head h // (H / K).
        value_TKE: values, (T, K, E).
        kind: causal: a position sees itself and what is before it; bidirectional: the whole segment.
        layout: the segments of this micro-batch.
    """
    query = query_THE
    if suits_flash(query.device, query.dtype, query.shape[-1]) and (kernel := flash_kernel()) is not None:
        return attend_by_flash(query_THE, key_TKE, value_TKE, kind, layout, kernel=kernel)
    # Beyond that length the probabilities, which the backward pass keeps, cost more than computing them twice.
    if query_THE.device.type == "cpu" and layout.longest <= _LONGEST_FOR_BMM:
        return attend_by_bmm(query_THE, key_TKE, value_TKE, kind, layout)
    return attend_by_sdpa(query_THE, key_TKE, value_TKE, kind, layout)


def attend_by_flash(
    query_THE: Tensor,
    key_TKE: Tensor,
    value_TKE: Tensor,
    kind: AttentionKind,
    layout: SegmentLayout,
    *,
    kernel: FlashKernel,
    positions_N: Tensor | None = None,
) -> Tensor:
    """`attend` by one call of a flash kernel; asks the device for nothing, whatever the segments are.

    With `positions_N`, the layout's targets, for their queries alone: (N, H, E) -> (N, H, E).
    """
    # In a graph: always, since another layout would be another graph. There, the compiler does it while it rotates
    # queries and keys, and copies values, which would otherwise hold the memory of the product they are part of.
    if torch.compiler.is_compiling() or any(span.is_padding for span in layout.spans):
        # Padding is a stretch of its own to the kernel: of zeros, whatever stands there, so that its output is 0 too.
        is_real_T11 = layout.is_real_T[:, None, None]
        is_real = is_real_T11 if positions_N is None else is_real_T11[positions_N]
        query_THE = torch.where(is_real, query_THE, 0)
        key_TKE, value_TKE = (torch.where(is_real_T11, part, 0) for part in (key_TKE, value_TKE))
    bounds_M, length = layout.bounds_M, layout.row_length
    query_bounds_M, longest = bounds_M, length
    if positions_N is not None:
        assert layout.targets is not None
        query_bounds_M, longest = layout.targets.bounds_M, layout.targets.longest
    return kernel(query_THE, key_TKE, value_TKE, query_bounds_M, bounds_M, longest, length, kind)


def attend_by_sdpa(
    query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kind: AttentionKind, layout: SegmentLayout
) -> Tensor:
    """`attend` by torch's attention, one call per span: for long segments, and for devices without a kernel here."""
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
            query, key, value, is_causal=kind is AttentionKind.CAUSAL, enable_gqa=query.shape[1] != key.shape[1]
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def attend_by_bmm(
    query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kind: AttentionKind, layout: SegmentLayout
) -> Tensor:
    """`attend` by batched matrix products with the probabilities kept: for the CPU, up to about 1,000 positions."""
    output_THE: Tensor = _BmmAttention.apply(query_THE, key_TKE, value_TKE, kind, layout)  # type: ignore[no-untyped-call]
    return output_THE


def _query_chunks(length: int, kind: AttentionKind) -> list[tuple[int, int, int]]:
    """(first query, one past the last query, one past the last key) of each product over one segment."""
    if kind is AttentionKind.BIDIRECTIONAL:
        return [(0, length, length)]
    # In chunks, a causal product leaves out most of the half that the mask would hide.
    stops = [min(start + _CAUSAL_CHUNK, length) for start in range(0, length, _CAUSAL_CHUNK)]
    return [(start, stop, stop) for start, stop in zip([0, *stops], stops, strict=False)]


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
                d_value[:, :last_key] += torch.bmm(probs.transpose(1, 2), d_rows)
                d_probs = torch.bmm(d_rows, value[:, :last_key].transpose(1, 2))
                d_scores = torch.ops.aten._softmax_backward_data(d_probs, probs, -1, probs.dtype)
                d_query[:, :, first:stop] = torch.bmm(d_scores, key[:, :last_key]).view_as(d_query[:, :, first:stop])
                d_key[:, :last_key] += torch.bmm(d_scores.transpose(1, 2), query[:, :, first:stop].flatten(1, 2))
            _put_back(d_query_THE, span, d_query.mul_(ctx.scale))
            _put_back(d_key_TKE, span, d_key[:, None])
            _put_back(d_value_TKE, span, d_value[:, None])
        return d_query_THE, d_key_TKE, d_value_TKE, None, None


def _hide_later_(scores: Tensor) -> None:
    """Set to -inf, in place, what a query may not see: the square's part above the diagonal."""
    size = scores.shape[-1]
    scores.masked_fill_(torch.ones(size, size, dtype=torch.bool, device=scores.device).triu_(1), float("-inf"))
