"""Layout of the segments of a micro-batch: made on the CPU, so that no kernel asks the device for a length later."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from toolkit.core.types import IntArray

_BOUNDS_MULTIPLE = 64


@dataclass(frozen=True)
class Span:
    """`count` neighbouring stretches of `length` positions each, starting at flat position `start`."""

    start: int
    length: int
    count: int
    is_padding: bool

    @property
    def stop(self) -> int:
        """Position after the last one."""
        return self.start + self.length * self.count


@dataclass(frozen=True, eq=False)
class TargetBounds:
    """Bounds of the targets in each stretch of a layout."""

    bounds_M: Tensor
    """int32: the targets of stretch i are bounds_M[i] to bounds_M[i + 1] - 1 of the list of targets, possibly none."""
    longest: int
    """An upper bound on the targets of a stretch, the same for all micro-batches of a shape."""


@dataclass(frozen=True, eq=False)
class SegmentLayout:
    """Layout of the segments of a micro-batch; tensors are on the model's device."""

    spans: tuple[Span, ...]
    """Spans that cover positions 0..T-1, in order; neighbouring segments of equal length are one span."""
    rope_positions_T: Tensor
    """Positions inside of each segment, from 0."""
    longest: int
    """Length of the longest segment; 0 if there is none."""
    bounds_M: Tensor
    """int32, for kernels: stretch i, a segment or padding, is bounds_M[i] to bounds_M[i + 1] - 1. Padded with T,
    which makes empty stretches, to one of few lengths."""
    is_real_T: Tensor
    """Whether a position is not padding."""
    row_length: int
    """S, which no segment exceeds."""
    targets: TargetBounds | None = None
    """None if the targets were not given."""

    @classmethod
    def from_segments(
        cls,
        segments_BS: Tensor | IntArray,
        *,
        device: torch.device | str | None = None,
        positions_N: IntArray | None = None,
        most_repeats: int = 0,
    ) -> "SegmentLayout":
        """Make the layout from segment ids, (B, S): a segment is a stretch of one id in one row, 0 is padding.

        Args:
            segments_BS: on the CPU; a tensor on another device is copied, which waits for the device.
            device: where the model is; by default where `segments_BS` is.
            positions_N: flat positions of the targets, ascending. If given, the layout is only for these
                targets.
            most_repeats: how often `positions_N` may repeat the last position; a bound for all layouts.
        """
        if isinstance(segments_BS, Tensor):
            device = segments_BS.device if device is None else device
            segments_BS = segments_BS.cpu().numpy()
        is_first_BS = np.ones(segments_BS.shape, dtype=bool)
        is_first_BS[:, 1:] = segments_BS[:, 1:] != segments_BS[:, :-1]
        starts = np.flatnonzero(is_first_BS)
        lengths = np.diff(starts, append=segments_BS.size)
        is_padding = segments_BS.reshape(-1)[starts] == 0
        rope_positions_T = np.arange(segments_BS.size) - np.repeat(starts, lengths)
        spans: list[Span] = []
        for start, length, padding in zip(starts.tolist(), lengths.tolist(), is_padding.tolist(), strict=True):
            if spans and (spans[-1].length, spans[-1].is_padding) == (length, padding):
                spans[-1] = Span(spans[-1].start, length, spans[-1].count + 1, padding)
            else:
                spans.append(Span(start, length, 1, padding))
        longest = int(lengths[~is_padding].max(initial=0))
        num_bounds = _BOUNDS_MULTIPLE * (starts.size // _BOUNDS_MULTIPLE + 1)
        bounds_M = np.full(num_bounds, segments_BS.size, dtype=np.int32)
        bounds_M[: starts.size] = starts
        device = "cpu" if device is None else device
        targets = None
        if positions_N is not None:
            target_bounds_M = np.searchsorted(positions_N, bounds_M).astype(np.int32)
            targets = TargetBounds(to_device(target_bounds_M, device), segments_BS.shape[1] + most_repeats)
        return cls(
            tuple(spans),
            to_device(rope_positions_T, device),
            longest,
            to_device(bounds_M, device),
            to_device(segments_BS.reshape(-1) != 0, device),
            segments_BS.shape[1],
            targets,
        )

    @property
    def lengths(self) -> list[int]:
        """Lengths of all segments, in order."""
        return [span.length for span in self.spans if not span.is_padding for _ in range(span.count)]


@dataclass(frozen=True, eq=False)
class MixedRows:
    """Layouts of a micro-batch of both attention kinds: its first rows are causal, the others bidirectional."""

    causal: SegmentLayout
    bidirectional: SegmentLayout


def to_device(array: npt.NDArray[np.generic], device: torch.device | str) -> Tensor:
    """The array as a tensor on the device; on a CPU it shares the array's memory."""
    tensor = torch.from_numpy(array)
    if torch.device(device).type == "cuda":
        # A copy from pageable memory would first wait for the device's queue.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
