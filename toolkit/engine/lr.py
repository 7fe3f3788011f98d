"""The learning rate as a pure function of the step: warm-up, then stable and decay (WSD), a cosine, or constant."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from toolkit.core.errors import SettingsError
from toolkit.core.settings import Settings
from toolkit.core.text import counted

_LONGEST_RAMP = 2000
_RAMP_SHARE = 0.05


class LearningRateSettings(Settings):
    """Warm-up, then constant, then decay (arXiv 2507.00994, appendix: 2,000 steps up, 2,000 steps down)."""

    peak: float = Field(5e-4, gt=0, allow_inf_nan=False)
    """Peak learning rate."""
    warmup_steps: int | None = Field(None, ge=0)
    """Steps of linear warm-up. Unset: 5 % of the run, at most 2,000."""
    decay_steps: int | None = Field(None, ge=0)
    """Decay steps at the end, for kind `wsd`. Unset: `decay_fraction`, else 5 % of the run, at most 2,000."""
    decay_fraction: float | None = Field(None, ge=0, le=1)
    """The same as a fraction of the run; `decay_steps` takes precedence."""
    kind: Literal["wsd", "cosine", "constant"] = "wsd"
    """After the warm-up: `wsd`, the peak, then a decay; `cosine`, half a cosine to the floor; `constant`, the peak."""
    decay: Literal["linear", "1-sqrt", "cosine", "exponential"] = "linear"
    """Shape of the decay of kind `wsd`."""
    floor: float = Field(0.0, ge=0, lt=1)
    """Final learning rate as a fraction of the peak, reached one step after the end."""

    @model_validator(mode="after")
    def _kind_and_decay_fit(self) -> Self:
        for key, given in (("decay_steps", self.decay_steps), ("decay_fraction", self.decay_fraction)):
            if self.kind != "wsd" and given is not None:
                raise ValueError(
                    f'lr.{key}={given} is of kind "wsd", and lr.kind="{self.kind}". Leave lr.{key} out, or set '
                    'lr.kind = "wsd".'
                )
        if self.kind != "wsd" and self.decay != "linear":
            raise ValueError(
                f'lr.decay="{self.decay}" is of kind "wsd", and lr.kind="{self.kind}". Leave lr.decay out, or set '
                'lr.kind = "wsd".'
            )
        if self.kind == "constant" and self.floor > 0:
            raise ValueError(f'lr.floor={self.floor:g}, but lr.kind="constant" never decays. Leave one of them out.')
        if self.decay == "exponential" and self.floor == 0:
            raise ValueError(
                'lr.decay="exponential" never reaches lr.floor=0. Set lr.floor to a share of the peak above 0, for '
                "example 0.01."
            )
        return self

    def ramps(self, total_steps: int) -> tuple[int, int]:
        """(warm-up steps, decay steps) in a run of `total_steps`; a cosine decays over all steps after the warm-up."""
        default = min(_LONGEST_RAMP, math.floor(_RAMP_SHARE * total_steps))
        warmup = default if self.warmup_steps is None else self.warmup_steps
        if self.kind != "wsd":
            if warmup > total_steps:
                raise SettingsError(
                    f"lr.warmup_steps ({warmup}) is longer than the run ({counted(total_steps, 'step')}).\n"
                    "Make it shorter, or the run longer."
                )
            return warmup, total_steps - warmup if self.kind == "cosine" else 0
        decay = self.decay_steps
        if decay is None:
            decay = default if self.decay_fraction is None else round(self.decay_fraction * total_steps)
        if warmup + decay > total_steps:
            raise SettingsError(
                f"lr.warmup_steps ({warmup}) and lr.decay_steps ({decay}) together are longer than the run "
                f"({counted(total_steps, 'step')}).\nMake them shorter, for example with --set "
                f"lr.warmup_steps={total_steps // 20} --set lr.decay_steps={total_steps // 2}, or the run longer."
            )
        return warmup, decay

    def describe(self, total_steps: int) -> str:
        """The schedule of a run of `total_steps` in words."""
        warmup, decay = self.ramps(total_steps)
        end = f"to {self.floor:g} x peak" if self.floor else "to 0"
        rest = {
            "wsd": f"{decay:,} of {self.decay} decay {end}",
            "cosine": f"a cosine {end} over the other {decay:,}",
            "constant": "then constant",
        }
        return f"peak {self.peak:g}, {counted(warmup, 'step')} of warm-up, {rest[self.kind]}"


def learning_rate_at(step: int, settings: LearningRateSettings, *, total_steps: int) -> float:
    """Learning rate of the update with 0-based index `step` in a run of `total_steps` updates."""
    warmup, decay = settings.ramps(total_steps)
    if step < warmup:
        return settings.peak * (step + 1) / warmup
    if step < total_steps - decay:
        return settings.peak
    return _decayed(settings, done=step - (total_steps - decay), decay=decay)


def _decayed(settings: LearningRateSettings, *, done: int, decay: int) -> float:
    """Learning rate after `done` of `decay` decay steps: the peak if none is done."""
    peak, x = settings.peak, done / decay
    shape = settings.decay if settings.kind == "wsd" else settings.kind
    if shape == "exponential":
        return peak * math.pow(settings.floor, x)
    if shape == "linear":
        to_zero = peak * (decay - done) / decay
    elif shape == "1-sqrt":  # Haegele et al. 2024 (arXiv 2405.18392), section 3.
        to_zero = peak * (1 - math.sqrt(x))
    else:
        to_zero = peak * (1 + math.cos(math.pi * x)) / 2
    # Equals peak x (floor + (1 - floor) x shape), and is exactly `to_zero` if the floor is 0.
    return to_zero + settings.floor * (peak - to_zero)
