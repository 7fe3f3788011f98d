"""Attention inside segments, of either kind, by whichever kernel suits device and tensors.

Attention is described by a kind and a `SegmentLayout`. No (S, S) mask crosses a function boundary. No position sees
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
"""Largest number of visible positions at which a CPU keeps the probabilities."""


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
            kernel: a flash kernel, which the compiler includes in the block's graph, one for all layouts. Any other
                stays outside of compiled blocks, so that neither layout nor kind causes a recompilation.
            positions_N: of the targets, if `query_THE` has only theirs, (N, H, E); see `takes_targets`.
        """
        if kernel is None or isinstance(kernel, str):
            output_THE: Tensor = self._attend_uncompiled(query_THE, key_TKE, value_TKE, kernel)
            return output_THE
        return attend_by_flash(
            query_THE, key_TKE, value_TKE, self.kind, self.layout, self.window, kernel=kernel, positions_N=positions_N
        )

    def takes_targets(self, kernel: BlockKernel) -> bool:
        """True if queries may be only those of the targets: the layout has them, and they see their whole segments.

        A causal kernel, and one with a window, would align queries and keys at their ends. Without a flash kernel,
        segments of equal length share a product if all have equally many queries; with only those of targets, each
        segment would need its own.
        """
        # In this order: compiled code without a kernel must not read the kind, which would make it another graph.
        if kernel is None or isinstance(kernel, str) or self.layout.targets is None or self.window is not None:
            return False
        return self.kind is AttentionKind.BIDIRECTIONAL

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _attend_uncompiled(self, query_THE: Tensor, key_TKE: Tensor, value_TKE: Tensor, kernel: BlockKernel) -> Tensor:
        return attend(query_THE, key_TKE, value_TKE, self.kind, self.layout, self.window, kernel=kernel)


@dataclass(eq=False)
class MixedAttention:
    """`SegmentAttention` for a micro-batch of both kinds: its first rows are causal, the others bidirectional."""

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
        """See `SegmentAttention`; outside of every graph: each number of causal rows would need another one.

        Queries are never only those of the targets.
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
    """Attention of rows of one kind, or of both; `window` gives the window under a kind."""
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
        kind: causal: a position sees itself and those before it; bidirectional: the whole segment.
        layout: the segments of this micro-batch.
        window: positions seen on each side; None: the whole segment.
        kernel: "automatic" is resolved only here.
    """
    query = query_THE
    if isinstance(kernel, str):
        kernel = flash_kernel() if suits_flash(query.device, query.dtype, query.shape[-1]) else None
    if kernel is not None:
        return attend_by_flash(query_THE, key_TKE, value_TKE, kind, layout, window, kernel=kernel)
    window = narrowed(window, layout.longest)
    seen = layout.longest if window is None else min(layout.longest, 2 * window + 1)
    # Beyond this many, keeping the probabilities for the backward pass costs more than computing them twice.
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
    """`attend` as one call of a flash kernel; never waits for the device, whatever the segments.

    With `positions_N`, the layout's targets, for their queries only: (N, H, E) -> (N, H, E).
    """
    # In a graph, always: a branch on the layout would make another graph. There, the compiler fuses it into the
    # rotation of queries and keys, and copies values, which would otherwise keep the whole joined product in memory.
    if torch.compiler.is_compiling() or any(span.is_padding for span in layout.spans):
        # To the kernel, padding is a stretch of its own: zeroed, whatever it contains, so that its output is 0 too.
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
