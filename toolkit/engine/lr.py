"""The learning rate as a pure function of the step: warm-up, stable, decay (WSD)."""

import math
from typing import Literal

from pydantic import Field

from toolkit.core.errors import SettingsError
from toolkit.core.settings import Settings
from toolkit.core.text import counted

_LONGEST_RAMP = 2000
_RAMP_SHARE = 0.05


class LearningRateSettings(Settings):
    """Warm-up, then constant, then decay (arXiv 2507.00994, appendix: 2,000 steps up, 2,000 steps down)."""

    peak: float = Field(5e-4, gt=0, allow_inf_nan=False)
    """Learning rate between warm-up and decay."""
    warmup_steps: int | None = Field(None, ge=0)
    """Steps of linear rise; unset: 5 % of the run, at most 2,000."""
    decay_steps: int | None = Field(None, ge=0)
    """Steps of decay at the end of the run; unset: 5 % of the run, at most 2,000."""
    kind: Literal["wsd"] = "wsd"
    """Shape of the whole schedule: warm-up, stable, decay."""
    decay: Literal["linear"] = "linear"
    """Shape of the decay; the last update has peak / decay_steps, none runs at 0."""

    def ramps(self, total_steps: int) -> tuple[int, int]:
        """(warm-up steps, decay steps) in a run of `total_steps`.

        Raises:
            SettingsError: if the two together are longer than the run.
        """
        default = min(_LONGEST_RAMP, math.floor(_RAMP_SHARE * total_steps))
        warmup = default if self.warmup_steps is None else self.warmup_steps
        decay = default if self.decay_steps is None else self.decay_steps
        if warmup + decay > total_steps:
            raise SettingsError(
                f"lr.warmup_steps ({warmup}) and lr.decay_steps ({decay}) together are longer than the run "
                f"({counted(total_steps, 'step')}).\nMake one of them shorter, or the run longer."
            )
        return warmup, decay


def learning_rate_at(step: int, settings: LearningRateSettings, *, total_steps: int) -> float:
    """Learning rate of the update with 0-based index `step` in a run of `total_steps` updates."""
    warmup, decay = settings.ramps(total_steps)
    if step < warmup:
        return settings.peak * (step + 1) / warmup
    if step >= total_steps - decay:
        return settings.peak * (total_steps - step) / decay
    return settings.peak
