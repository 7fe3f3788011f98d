"""Attention inside segments, of either kind, by whichever kernel suits the place.

Attention is a description: a kind and a `SegmentLayout`, which says where segments begin and end. It is made on the
CPU from the segment ids of a micro-batch, once, so no kernel has to ask the device for a length later.
No (S, S) mask crosses a function boundary. A pad is nobody's neighbour: its output is 0 and so is its gradient.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from toolkit.core.types import AttentionKind, IntArray
from toolkit.model.placement import placed
from toolkit.model.varlen import VarlenKernel, suits_varlen, varlen_kernel, with_own_heads

_LONGEST_FOR_BMM = 1024
_CAUSAL_CHUNK = 128
_BOUNDS_MULTIPLE = 64


@dataclass(frozen=True)
class Run:
    """`count` neighbouring stretches of `length` positions each, from flat position `start` on."""

    start: int
    length: int
    count: int
    is_padding: bool

    @property
    def stop(self) -> int:
        """One past the last position."""
        return self.start + self.length * self.count


@dataclass(frozen=True, eq=False)
class SegmentLayout:
    """Where the segments of a micro-batch lie.

    `runs` cover positions 0..T-1 in order; neighbouring segments of equal length are one run. `positions_T` counts
    from 0 in each segment (RoPE positions), on the device of the model. `longest` is the longest segment, 0 if none.
    `bounds_M` (int32) and `is_real_T`, there too, say the same for kernels on the device: stretch i, a segment or
    padding, is bounds_M[i] to bounds_M[i + 1] - 1. `bounds_M` is filled up with T, which makes empty stretches, to few
    different lengths. `row_length` is S, which no segment exceeds.
    """

    runs: tuple[Run, ...]
    positions_T: Tensor
    longest: int
    bounds_M: Tensor
    is_real_T: Tensor
    row_length: int

    @classmethod
    def from_segments(
        cls, segments_BS: Tensor | IntArray, *, device: torch.device | str | None = None
    ) -> "SegmentLayout":
        """Read the layout off segment ids, (B, S): a segment is a stretch of one id in one row, 0 is padding.

        Args:
            segments_BS: on the CPU; a tensor on another device is copied, and waited for.
            device: where the model is; by default where `segments_BS` is.
        """
        if isinstance(segments_BS, Tensor):
            device = segments_BS.device if device is None else device
            segments_BS = segments_BS.cpu().numpy()
        is_first_BS = np.ones(segments_BS.shape, dtype=bool)
        is_first_BS[:, 1:] = segments_BS[:, 1:] != segments_BS[:, :-1]
        starts = np.flatnonzero(is_first_BS)
        lengths = np.diff(starts, append=segments_BS.size)
        is_padding = segments_BS.reshape(-1)[starts] == 0
        positions_T = np.arange(segments_BS.size) - np.repeat(starts, lengths)
        runs: list[Run] = []
        for start, length, padding in zip(starts.tolist(), lengths.tolist(), is_padding.tolist(), strict=True):
            if runs and (runs[-1].length, runs[-1].is_padding) == (length, padding):
                runs[-1] = Run(runs[-1].start, length, runs[-1].count + 1, padding)
            else:
                runs.append(Run(start, length, 1, padding))
        longest = int(lengths[~is_padding].max(initial=0))
        num_bounds = _BOUNDS_MULTIPLE * (starts.size // _BOUNDS_MULTIPLE + 1)
        bounds_M = np.full(num_bounds, segments_BS.size, dtype=np.int32)
        bounds_M[: starts.size] = starts
        device = "cpu" if device is None else device
        return cls(
            tuple(runs),
            placed(positions_T, device),
            longest,
            placed(bounds_M, device),
            placed(segments_BS.reshape(-1) != 0, device),
            segments_BS.shape[1],
        )

    def num_pairs(self, kind: AttentionKind) -> int:
        """How many (query, key) pairs see each other: what attention is worth, whatever a kernel computes."""
        if kind is AttentionKind.BIDIRECTIONAL:
            return sum(run.count * run.length**2 for run in self.runs if not run.is_padding)
        return sum(run.count * run.length * (run.length + 1) // 2 for run in self.runs if not run.is_padding)


@dataclass(frozen=True, eq=False)
class SegmentAttention:
    """`attend` for one forward pass, as its blocks call it.

    A compiled block does not look inside, so that neither a new layout nor the other kind compiles it again.
    """

    kind: AttentionKind
    layout: SegmentLayout

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor) -> Tensor:
        """See `attend`."""
        return attend(query_THE, key_TKE, value_TKE, self.kind, self.layout)


def attend(query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kind: AttentionKind, layout: SegmentLayout) -> Tensor:
    """Attention of every position over its own segment, (T, H, E); 0 at padding.

    Args:
        query_THE: rotated queries, (T, H, E).
        key_TKE: rotated keys, (T, K, E); query head h reads key-value head h // (H / K).
        value_TKE: values, (T, K, E).
        kind: causal: a position sees itself and what is before it; bidirectional: the whole segment.
        layout: the segments of this micro-batch.
    """
    if suits_varlen(query_THE) and (kernel := varlen_kernel()) is not None:
        return attend_by_varlen(query_THE, key_TKE, value_TKE, kind, layout, kernel=kernel)
    # Beyond that length the probabilities, which the backward pass keeps, cost more than computing them twice.
    if query_THE.device.type == "cpu" and layout.longest <= _LONGEST_FOR_BMM:
        return attend_by_bmm(query_THE, key_TKE, value_TKE, kind, layout)
    return attend_by_sdpa(query_THE, key_TKE, value_TKE, kind, layout)


def attend_by_varlen(
    query_THE: Tensor,
    key_TKE: Tensor,
    value_TKE: Tensor,
    kind: AttentionKind,
    layout: SegmentLayout,
    *,
    kernel: VarlenKernel,
) -> Tensor:
    """`attend` by one call of a flash kernel; asks the device for nothing, whatever the segments are."""
    if any(run.is_padding for run in layout.runs):
        # Padding is a stretch of its own to the kernel: of zeros, whatever stands there, so that its output is 0 too.
        is_real_T11 = layout.is_real_T[:, None, None]
        query_THE, key_TKE, value_TKE = (torch.where(is_real_T11, part, 0) for part in (query_THE, key_TKE, value_TKE))
    return kernel(query_THE, key_TKE, value_TKE, layout.bounds_M, layout.row_length, kind)


def attend_by_sdpa(
    query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kind: AttentionKind, layout: SegmentLayout
) -> Tensor:
    """`attend` by torch's attention, one call per run: for long segments, and for devices without a kernel here."""
    if query_THE.is_cuda:
        # In fp32, torch's kernels there share no heads, and its plain way would keep every probability.
        key_TKE, value_TKE = (with_own_heads(part, query_THE.shape[1]) for part in (key_TKE, value_TKE))
    # One split and one cat: slices taken one by one would each cost a zero-filled gradient of full size.
    sizes = [run.stop - run.start for run in layout.runs]
    outputs = []
    parts = (torch.split(tensor, sizes) for tensor in (query_THE, key_TKE, value_TKE))
    for query, key, value, run in zip(*parts, layout.runs, strict=True):
        if run.is_padding:
            outputs.append(torch.zeros_like(query))
            continue
        query, key, value = (
            part.view(run.count, run.length, *part.shape[1:]).transpose(1, 2) for part in (query, key, value)
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


def _heads_first(tensor_THE: Tensor, run: Run, num_key_value_heads: int) -> Tensor:
    """(T, H, E) -> (count x K, H / K, length, E), contiguous."""
    width = tensor_THE.shape[-1]
    part = tensor_THE[run.start : run.stop].view(run.count, run.length, num_key_value_heads, -1, width)
    return part.permute(0, 2, 3, 1, 4).reshape(run.count * num_key_value_heads, -1, run.length, width)


def _put_back(target_THE: Tensor, run: Run, part: Tensor) -> None:
    """The inverse of `_heads_first`, into `target_THE`."""
    num_key_value_heads = part.shape[0] // run.count
    view = target_THE[run.start : run.stop].view(run.count, run.length, num_key_value_heads, -1, part.shape[-1])
    view.copy_(part.view(run.count, num_key_value_heads, -1, run.length, part.shape[-1]).permute(0, 3, 1, 2, 4))


class _BmmAttention(torch.autograd.Function):
    """See `attend_by_bmm`. The query heads that share a key-value head are rows of one product."""

    @staticmethod
    def forward(
        ctx: Any, query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kind: AttentionKind, layout: SegmentLayout
    ) -> Tensor:
        num_key_value_heads, scale = key_TKE.shape[1], query_THE.shape[2] ** -0.5
        output_THE = torch.zeros_like(query_THE, memory_format=torch.contiguous_format)
        kept: list[Tensor] = []
        for run in layout.runs:
            if run.is_padding:
                continue
            # Scaling queries here and their gradients there spares two passes over the probabilities.
            query = _heads_first(query_THE, run, num_key_value_heads) * scale
            key = _heads_first(key_TKE, run, num_key_value_heads).squeeze(1)
            value = _heads_first(value_TKE, run, num_key_value_heads).squeeze(1)
            output = torch.empty_like(query)
            kept += [query, key, value]
            for first, stop, last_key in _query_chunks(run.length, kind):
                rows = query[:, :, first:stop].flatten(1, 2)
                scores = torch.bmm(rows, key[:, :last_key].transpose(1, 2))
                if kind is AttentionKind.CAUSAL:
                    _hide_later_(scores.view(*query.shape[:2], stop - first, last_key)[..., first:])
                probs = torch.softmax(scores, dim=-1)
                output[:, :, first:stop] = torch.bmm(probs, value[:, :last_key]).view_as(output[:, :, first:stop])
                kept.append(probs)
            _put_back(output_THE, run, output)
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
        for run in ctx.layout.runs:
            if run.is_padding:
                continue
            query, key, value = next(kept), next(kept), next(kept)
            d_output = _heads_first(d_output_THE, run, ctx.num_key_value_heads)
            d_query = torch.empty_like(query)
            d_key, d_value = torch.zeros_like(key), torch.zeros_like(value)
            for first, stop, last_key in _query_chunks(run.length, ctx.kind):
                probs = next(kept)
                d_rows = d_output[:, :, first:stop].flatten(1, 2)
                d_value[:, :last_key] += torch.bmm(probs.transpose(1, 2), d_rows)
                d_probs = torch.bmm(d_rows, value[:, :last_key].transpose(1, 2))
                d_scores = torch.ops.aten._softmax_backward_data(d_probs, probs, -1, probs.dtype)
                d_query[:, :, first:stop] = torch.bmm(d_scores, key[:, :last_key]).view_as(d_query[:, :, first:stop])
                d_key[:, :last_key] += torch.bmm(d_scores.transpose(1, 2), query[:, :, first:stop].flatten(1, 2))
            _put_back(d_query_THE, run, d_query.mul_(ctx.scale))
            _put_back(d_key_TKE, run, d_key[:, None])
            _put_back(d_value_TKE, run, d_value[:, None])
        return d_query_THE, d_key_TKE, d_value_TKE, None, None


def _hide_later_(scores: Tensor) -> None:
    """Set to -inf, in place, what a query may not see: the square's part above the diagonal."""
    size = scores.shape[-1]
    scores.masked_fill_(torch.ones(size, size, dtype=torch.bool, device=scores.device).triu_(1), float("-inf"))
