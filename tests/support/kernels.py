"""Kernels as plain as can be, to compare others with."""

import itertools

import torch
from torch import Tensor

from toolkit.core.types import AttentionKind


def plain_varlen(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, kind: AttentionKind
) -> Tensor:
    """What a flash kernel promises, in the plainest way: one softmax for each stretch and head."""
    assert bounds.dtype == torch.int32
    edges = bounds.tolist()
    assert (edges[0], edges[-1]) == (0, len(query))
    group, mixed = query.shape[1] // key.shape[1], []
    for start, stop in itertools.pairwise(edges):
        assert 0 <= stop - start <= longest
        rows = query[start:stop].transpose(0, 1)
        keys, values = (p[start:stop].repeat_interleave(group, dim=1).transpose(0, 1) for p in (key, value))
        scores = rows @ keys.transpose(1, 2) / query.shape[2] ** 0.5
        if kind is AttentionKind.CAUSAL:
            scores = scores.masked_fill(torch.ones(stop - start, stop - start).triu(1).bool(), float("-inf"))
        mixed.append((scores.softmax(-1) @ values).transpose(0, 1))
    return torch.cat(mixed)
