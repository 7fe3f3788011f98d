"""A step as an engine takes it, and what it says of it."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from toolkit.core.types import AttentionKind
from toolkit.model.config import ModelSettings
from toolkit.model.flops import attended_pairs
from toolkit.model.segments import MixedRows, SegmentLayout


@dataclass(frozen=True)
class MicroBatch:
    """Inputs (B, S) and targets (N,) of one forward pass on one rank, int64, and the layout of the segments."""

    input_ids_BS: torch.Tensor
    layout: SegmentLayout
    attention: AttentionKind | MixedRows
    positions_N: torch.Tensor
    labels_N: torch.Tensor
    weights_N: torch.Tensor | None = None
    """fp32, what each target counts in its objective's mean; None: all alike."""
    objective_N: torch.Tensor | None = None
    """int64, the number of the objective of each target; None: the first's, in a step of one."""

    def attended_pairs(self, model: ModelSettings) -> int:
        """(Query, key) pairs that see each other, over all layers, whatever a kernel computes besides."""
        if isinstance(self.attention, MixedRows):
            causal, bidirectional = self.attention.causal.lengths, self.attention.bidirectional.lengths
            return attended_pairs(model, AttentionKind.CAUSAL, causal) + attended_pairs(
                model, AttentionKind.BIDIRECTIONAL, bidirectional
            )
        return attended_pairs(model, self.attention, self.layout.lengths)

    @property
    def weight(self) -> torch.Tensor:
        """Total weight of its targets in a mean, 0-dim fp64."""
        if self.weights_N is None:
            return (self.labels_N >= 0).sum().double()
        return self.weights_N.double().sum()

    def weighted(self, scale_P: torch.Tensor) -> "MicroBatch":
        """The same with each target weighed by the scale of its objective too."""
        assert self.objective_N is not None
        weights_N = scale_P[self.objective_N]
        return replace(self, weights_N=weights_N if self.weights_N is None else weights_N * self.weights_N)


class LossTerm(NamedTuple):
    """An objective of a step: its term of the loss is `coefficient` x (sum over its targets / `targets`)."""

    targets: float
    """Over all micro-batches and ranks, each by its weight; may be 0, which gives 0."""
    coefficient: float = 1.0
    largest_mean: float = math.inf
    """With which the update is applied; not looked at under a pipeline, where it comes first."""


@dataclass(frozen=True)
class StepResult:
    """Exact loss before the update, and the global gradient norm before clipping."""

    loss: float
    grad_norm: float
    means: tuple[float, ...] = ()
    """Exact token mean of each objective."""
    is_applied: bool = True
    """Weights and moments were updated."""
    flags: tuple[bool, ...] = ()
    """For each flag, whether any rank raised it."""


class NonFiniteStep(Exception):
    """The loss or the gradient of a step is not finite.

    `micro_batches` are those of this rank with a non-finite loss, possibly none; None if unknown.
    """

    def __init__(self, what: str, micro_batches: tuple[int, ...] | None) -> None:
        super().__init__(what)
        self.what = what
        self.micro_batches = micro_batches
