"""Means with 95 % intervals, and paired tests between models.

The mean of a family is the unweighted mean of its data sets. Its t interval treats the seeds of its samples (each a
data set, or several that share a model) as independent: variances of the means add up, with Welch-Satterthwaite degrees
of freedom. It shows only how much a score varies with fine-tuning: if each model was pretrained once, it says nothing
about other pretraining seeds.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

CONFIDENCE = 0.95
# Differences that are equal up to rounding have no variance to test against.
_ROUNDING = 1e-12
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A mean score; interval and standard deviation are None if a data set has a single seed."""

    mean: float
    nums: tuple[int, ...]
    """Number of scores of each data set."""
    std: float | None = None
    """Standard deviation (n - 1) of one data set's scores; None for a family's mean."""
    interval: Interval | None = None
    """From Student's t."""


@dataclass(frozen=True)
class PairedTest:
    """A t test on the differences between two models, pair by pair."""

    num_pairs: int
    difference: float
    """Mean of first minus second."""
    interval: Interval | None
    """95 % interval of the difference by Student's t."""
    p: float | None
    """Two-sided; None if there is nothing to test: a single pair, or differences that are all equal and not 0."""


def estimate(samples: Sequence[Sequence[float]]) -> Estimate:
    """Mean over data sets of the means over their seeds; `samples` has at least one score for each data set."""
    nums = tuple(len(scores) for scores in samples)
    mean = math.fsum(math.fsum(scores) / len(scores) for scores in samples) / len(samples)
    if min(nums) < 2:
        return Estimate(mean, nums)
    std = float(np.std(samples[0], ddof=1)) if len(samples) == 1 else None
    return Estimate(mean, nums, std=std, interval=_t_interval(mean, samples))


def paired_test(first: Mapping[_Key, float], second: Mapping[_Key, float]) -> PairedTest | None:
    """Compare the scores that two models have under the same keys; None if they share no key."""
    from scipy import stats

    keys = sorted(first.keys() & second.keys(), key=str)
    if not keys:
        return None
    differences = np.array([first[key] - second[key] for key in keys])
    mean, num = float(differences.mean()), len(keys)
    if num < 2:
        return PairedTest(num, mean, interval=None, p=None)
    spread = float(differences.std(ddof=1))
    if spread <= _ROUNDING:
        return PairedTest(num, mean, interval=None, p=1.0 if abs(mean) <= _ROUNDING else None)
    result = stats.ttest_1samp(differences, 0.0)
    low, high = result.confidence_interval(CONFIDENCE)
    return PairedTest(num, mean, interval=Interval(float(low), float(high)), p=float(result.pvalue))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted by Holm's step-down method; None stands for no test and does not count.

    Sture Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    tested = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        adjusted[index] = largest
    return adjusted


def _t_interval(mean: float, samples: Sequence[Sequence[float]]) -> Interval:
    from scipy import stats

    parts = [float(np.var(scores, ddof=1)) / len(scores) / len(samples) ** 2 for scores in samples]
    variance = math.fsum(parts)
    if variance == 0.0:
        return Interval(mean, mean)
    shares = (part**2 / (len(scores) - 1) for part, scores in zip(parts, samples, strict=True))
    degrees = variance**2 / math.fsum(shares)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * math.sqrt(variance)
    return Interval(mean - half, mean + half)
