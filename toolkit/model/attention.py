"""Attention inside segments, of either kind, by whichever kernel suits the place.

Attention is a description: a kind and a `SegmentLayout`. No (S, S) mask crosses a function boundary. No position sees
padding, and padding sees nothing: its output is 0 and so is its gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.core.types import AttentionKind
from toolkit.model.kernels.flash import BlockKernel, FlashKernel, flash_kernel, suits_flash
from toolkit.model.kernels.plain_attention import attend_by_bmm, attend_by_sdpa, narrowed
from toolkit.model.kernels.window_attention import (
    attend_bands_by_sdpa,
    attend_in_bands,
    bands_are_cheaper,
    multiply_bands,
)
from toolkit.model.segments import MixedRows, SegmentLayout

LONGEST_FOR_BMM = 1024
"""Positions that one may see, on a CPU, for the probabilities to be kept."""


@dataclass(eq=False)
class SegmentAttention:
    """`attend` for one forward pass, as its blocks call it."""

    kind: AttentionKind
    layout: SegmentLayout
    window: int | None = None
    """Positions attended to on each side; None: the whole segment."""

    def __call__(
        self,
        query_THE: Tensor,
        key_TKE: Tensor,
        value_TKE: Tensor,
        kernel: BlockKernel,
        positions_N: Tensor | None = None,
    ) -> Tensor:
        """See `attend`.

        Args:
            kernel: a flash kernel, which the compiler takes into the block's graph, one for all layouts. Otherwise a
                compiled block does not look inside, so that neither layout nor kind compiles it again.
            positions_N: of the targets, where `query_THE` has theirs alone, (N, H, E); see `takes_targets`.
        """
        if kernel is None or isinstance(kernel, str):
            output_THE: Tensor = self._attend_uncompiled(query_THE, key_TKE, value_TKE, kernel)
            return output_THE
        return attend_by_flash(
            query_THE, key_TKE, value_TKE, self.kind, self.layout, self.window, kernel=kernel, positions_N=positions_N
        )

    def takes_targets(self, kernel: BlockKernel) -> bool:
        """Queries may be those of the targets alone: the layout knows them, and they see all of their segments.

        A causal kernel, and one with a window, would count queries and keys from their ends. Without a flash kernel,
        products over equally many queries of equally long segments are few, and those over targets would be one for
        each segment.
        """
        # In this order: compiled code without a kernel does not ask for the kind, which would make it another graph.
        if kernel is None or isinstance(kernel, str) or self.layout.targets is None or self.window is not None:
            return False
        return self.kind is AttentionKind.BIDIRECTIONAL

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _attend_uncompiled(self, query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kernel: BlockKernel) -> Tensor:
        return attend(query_THE, key_TKE, value_TKE, self.kind, self.layout, self.window, kernel=kernel)


@dataclass(eq=False)
class MixedAttention:
    """The same for a micro-batch of both kinds: of its first rows, which are causal, and of the others."""

    causal: SegmentAttention
    bidirectional: SegmentAttention

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(
        self,
        query_THE: Tensor,
        key_TKE: Tensor,
        value_TKE: Tensor,
        kernel: BlockKernel,
        positions_N: Tensor | None = None,
    ) -> Tensor:
        """See `SegmentAttention`; outside of every graph, which would be another one for each number of causal rows.

        Queries are never those of the targets alone.
        """
        of_rows = (self.causal, self.bidirectional)
        sizes = [rows.layout.is_real_T.numel() for rows in of_rows]
        # One split and one cat, as in `attend_by_sdpa`.
        parts = zip(*(torch.split(part, sizes) for part in (query_THE, key_TKE, value_TKE)), strict=True)
        return torch.cat(
            [
                attend(query, key, value, rows.kind, rows.layout, rows.window, kernel=kernel)
                for (query, key, value), rows in zip(parts, of_rows, strict=True)
            ]
        )

    def takes_targets(self, kernel: BlockKernel) -> bool:
        """Never: see `__call__`."""
        return False


def attention_over(
    rows: AttentionKind | MixedRows, layout: SegmentLayout, window: Callable[[AttentionKind], int | None]
) -> SegmentAttention | MixedAttention:
    """Attention of rows of one kind, or of both; `window` says how far a position sees under a kind."""
    if isinstance(rows, MixedRows):
        causal, bidirectional = AttentionKind.CAUSAL, AttentionKind.BIDIRECTIONAL
        return MixedAttention(
            SegmentAttention(causal, rows.causal, window(causal)),
            SegmentAttention(bidirectional, rows.bidirectional, window(bidirectional)),
        )
    return SegmentAttention(rows, layout, window(rows))


def attend(
    query_THE: Tensor,
    key_TKE: Tensor,
    value_TKE: Tensor,
    kind: AttentionKind,
    layout: SegmentLayout,
    window: int | None = None,
    *,
    kernel: BlockKernel = "automatic",
) -> Tensor:
    """Attention of every position over its own segment, (T, H, E); 0 at padding.

    Args:
        query_THE: rotated queries, (T, H, E).
        key_TKE: rotated keys, (T, K, E); query head h reads key-value head h // (H / K).
        value_TKE: values, (T, K, E).
        kind: causal: a position sees itself and what is before it; bidirectional: the whole segment.
        layout: the segments of this micro-batch.
        window: how far a position sees to each side of itself; None: as far as its segment goes.
        kernel: the only place that looks for one where none was chosen.
    """
    query = query_THE
    if isinstance(kernel, str):
        kernel = flash_kernel() if suits_flash(query.device, query.dtype, query.shape[-1]) else None
    if kernel is not None:
        return attend_by_flash(query_THE, key_TKE, value_TKE, kind, layout, window, kernel=kernel)
    window = narrowed(window, layout.longest)
    seen = layout.longest if window is None else min(layout.longest, 2 * window + 1)
    # Beyond so many the probabilities, which the backward pass keeps, cost more than computing them twice.
    keeps_probs = query.device.type == "cpu" and seen <= LONGEST_FOR_BMM
    if window is not None and (not keeps_probs or bands_are_cheaper(query, kind, layout, window)):
        products = multiply_bands if keeps_probs else attend_bands_by_sdpa
        return attend_in_bands(query_THE, key_TKE, value_TKE, kind, layout, window, products=products)
    if keeps_probs:
        return attend_by_bmm(query_THE, key_TKE, value_TKE, kind, layout, window)
    return attend_by_sdpa(query_THE, key_TKE, value_TKE, kind, layout)


def attend_by_flash(
    query_THE: Tensor,
    key_TKE: Tensor,
    value_TKE: Tensor,
    kind: AttentionKind,
    layout: SegmentLayout,
    window: int | None = None,
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
    return kernel(query_THE, key_TKE, value_TKE, query_bounds_M, bounds_M, longest, length, kind, window)
