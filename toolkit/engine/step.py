"""Inputs and results of an engine's step."""

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
    """fp32, weight of each target in its objective's mean; None: equal weights."""
    objective_N: torch.Tensor | None = None
    """int64, index of each target's objective; None: the first one, in a step with one objective."""

    def attended_pairs(self, model: ModelSettings) -> int:
        """Number of (query, key) pairs that attend to each other, over all layers, whatever else a kernel computes."""
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
        """This micro-batch with each target's weight also multiplied by the scale of its objective."""
        assert self.objective_N is not None
        weights_N = scale_P[self.objective_N]
        return replace(self, weights_N=weights_N if self.weights_N is None else weights_N * self.weights_N)


class LossTerm(NamedTuple):
    """An objective of a step: its term of the loss is `coefficient` x (sum over its targets / `targets`)."""

    targets: float
    """Weighted count of targets over all micro-batches and ranks; may be 0, which gives a term of 0."""
    coefficient: float = 1.0
    largest_mean: float = math.inf
    """Largest mean with which the update is applied; ignored under a pipeline, where the update comes first."""


@dataclass(frozen=True)
class StepResult:
    """Exact loss before the update, and the global gradient norm before clipping."""

    loss: float
    grad_norm: float
    means: tuple[float, ...] = ()
    """Exact token mean of each objective."""
    is_applied: bool = True
    """Whether weights and moments were updated."""
    flags: tuple[bool, ...] = ()
    """For each flag, whether any rank raised it."""


class NonFiniteStep(Exception):
    """The loss or the gradient of a step is not finite.

    `micro_batches` are this rank's micro-batches with a non-finite loss, possibly empty; None if unknown.
    """

    def __init__(self, what: str, micro_batches: tuple[int, ...] | None) -> None:
        super().__init__(what)
        self.what = what
        self.micro_batches = micro_batches
