"""Model FLOPs of a training step, counted without building the model."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from toolkit.core.types import AttentionKind
from toolkit.model.config import ModelSettings
from toolkit.model.parameters import parameter_counts

_FLOPS_PER_WEIGHT = 6
# Scores and weighted values: two products of H x E numbers per pair.
_FLOPS_PER_PAIR_AND_NUMBER = 12


def training_flops(settings: ModelSettings, *, tokens: float, targets: float, attended_pairs: float) -> float:
    """Model FLOPs of forward and backward passes over some positions.

        6 x (parameters of the body) x tokens  +  6 x (those of the head) x targets  +  12 x H x E x attended pairs

    Only what the objective requires counts: no padding, the head at the targets only, attention inside segments only
    and, if causal, only backwards. A multiplication and an addition are two operations, and the backward pass costs
    twice the forward pass, so each use of a weight in a step counts 6. An implementation's extra work (the wasted half
    of a causal product, recomputed activations) does not count, and work that it saves (the last block at the targets
    only) still does: the number depends only on model and data, so rates of two implementations are comparable.

    Args:
        settings: the shape, with its vocabulary size.
        tokens: positions that are not padding.
        targets: positions at which the head is needed.
        attended_pairs: (query, key) pairs that see each other, over all layers (`attended_pairs`). With
            tokens = 1 this is layers x attended length: the positions that a position sees on average.
    """
    counts = parameter_counts(settings)
    attention_width = settings.num_attention_heads * settings.head_size
    weights = counts.body * tokens + (counts.transform + counts.embedding) * targets
    attention = _FLOPS_PER_PAIR_AND_NUMBER * attention_width * attended_pairs
    return _FLOPS_PER_WEIGHT * weights + attention


def attended_pairs(settings: ModelSettings, kind: AttentionKind, lengths: Iterable[int]) -> int:
    """(Query, key) pairs that see each other, over all layers, in segments of these lengths."""
    lengths_M = np.fromiter(lengths, dtype=np.int64)
    pairs = 0
    for layer_type, layers in Counter(settings.layer_types).items():
        window = settings.window(layer_type, kind)
        # Each position sees this many on either side, minus those beyond the segment's ends.
        reach_M = lengths_M - 1 if window is None else np.minimum(lengths_M - 1, window)
        outside_M = reach_M * (reach_M + 1)
        if kind is AttentionKind.BIDIRECTIONAL:
            pairs += layers * int((lengths_M * (2 * reach_M + 1) - outside_M).sum())
        else:
            pairs += layers * int((lengths_M * (reach_M + 1) - outside_M // 2).sum())
    return pairs
