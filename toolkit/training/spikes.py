"""Spikes: steps where the loss of an objective is far above its losses in the steps before."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from toolkit.core.errors import LossSpikeError

WINDOW = 100
"""Number of steps that a loss is compared with, all of its phase."""
# Ratio of the standard deviation to the median absolute deviation, for a normal distribution.
_NORMAL = 1.4826


class SpikePolicy:
    """Decides which steps are spikes (`train.spike_deviations`), and what happens to them (`train.on_spike`)."""

    def __init__(self, action: Literal["tell", "skip", "stop"], deviations: float) -> None:
        self.action, self._deviations = action, deviations

    def threshold(self, recent_losses: Sequence[float]) -> float:
        """The loss above which the next step is a spike; infinite with fewer than `WINDOW` recent losses."""
        if len(recent_losses) < WINDOW:
            return math.inf
        middle = statistics.median(recent_losses)
        return middle + self._deviations * _NORMAL * statistics.median(abs(loss - middle) for loss in recent_losses)

    def thresholds(self, names: Sequence[str], recent_losses: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """`threshold` of each objective."""
        return {name: self.threshold(recent_losses.get(name, ())) for name in names}

    def largest_applied(self, threshold: float) -> float:
        """The largest loss of an objective with which an update is still applied."""
        return math.inf if self.action == "tell" else threshold

    def report(
        self, step: int, name: str, means: Mapping[str, float], thresholds: Mapping[str, float], rows: str
    ) -> str:
        """Describe a spike of an objective, with the rows of the step and what happens to it; raise `LossSpikeError`
        if the run is to stop there.
        """
        of, loss, threshold = f" of {name}" if len(thresholds) > 1 else "", means[name], thresholds[name]
        text = (
            f"step {step}: the loss{of} {loss:.4g} is a spike, above {threshold:.4g}: the median of the {WINDOW} steps "
            f"before it and {self._deviations:g} robust deviations. Rows of the step: {rows}."
        )
        if self.action == "stop":
            raise LossSpikeError(
                f"{text}\nNothing of this step was saved; the last checkpoint is intact. Start again with --set "
                "train.on_spike=skip to leave this update out (not with parallel.pp), or with tell to make it."
            )
        return f"{text} Its update is left out." if self.action == "skip" else text
