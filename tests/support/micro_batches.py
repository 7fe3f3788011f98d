"""Micro-batches of random tokens for an engine, without a corpus."""

import numpy as np
import torch

from toolkit.core.types import AttentionKind
from toolkit.engine.step import MicroBatch
from toolkit.model.segments import SegmentLayout


def random_micro_batches(step: int, rank: int, *, accumulation: int, length: int) -> list[MicroBatch]:
    """Those of a rank for a step: one row each, of which every token is a target, its own label."""
    generator = np.random.default_rng((step, rank))
    layout = SegmentLayout.from_segments(np.ones((1, length), dtype=np.int32), device=torch.device("cpu"))
    return [
        MicroBatch(
            torch.from_numpy(row),
            layout,
            AttentionKind.BIDIRECTIONAL,
            torch.arange(length),
            torch.from_numpy(row[0].copy()),
        )
        for row in generator.integers(3, 90, (accumulation, 1, length))
    ]
