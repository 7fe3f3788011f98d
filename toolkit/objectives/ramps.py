"""Ramps: values that change from one to another over each phase, as a function of the progress in it."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from toolkit.core.settings import Settings


class ShareRamp(Settings):
    """A share that goes in a straight line from one value to another over the phase."""

    first: float = Field(alias="from", ge=0, le=1)
    """Share of the first step of the phase."""
    last: float = Field(alias="to", ge=0, le=1)
    """Share of its last step."""


class MaskRatioRamp(Settings):
    """A mask ratio that goes from one value to another over each phase of its objective."""

    start: float = Field(gt=0, le=1)
    """Mask ratio of the first step of a phase."""
    stop: float = Field(gt=0, le=1)
    """Mask ratio of its last step, and of evaluation."""
    shape: Literal["linear", "cosine", "steps"] = "linear"
    """Shape of the ramp: straight; half a cosine, slow at both ends; stairs."""
    steps: int | None = Field(default=None, gt=1)
    """Number of stairs of shape `steps`, from `start` to `stop`, each for an equal share of the phase."""

    @model_validator(mode="after")
    def _stairs_have_a_number(self) -> Self:
        if self.shape == "steps" and self.steps is None:
            raise ValueError('shape = "steps" needs a number of stairs. Set steps, for example to 4.')
        if self.shape != "steps" and self.steps is not None:
            raise ValueError(f'steps = {self.steps} is of shape "steps", and shape = "{self.shape}". Leave one out.')
        return self

    def at(self, progress: float) -> float:
        """The ratio at a progress in the phase: 0 at its first step, 1 at its last."""
        if self.shape == "steps":
            assert self.steps is not None
            share = min(math.floor(progress * self.steps), self.steps - 1) / (self.steps - 1)
        else:
            share = progress if self.shape == "linear" else (1 - math.cos(math.pi * progress)) / 2
        # Exactly the settings' values at both ends.
        return self.start * (1 - share) + self.stop * share

    @property
    def mean(self) -> float:
        """Mean over a long phase; every shape is symmetric about its middle."""
        return (self.start + self.stop) / 2

    def __str__(self) -> str:
        shape = {"linear": "", "cosine": ", cosine", "steps": f", {self.steps} steps"}[self.shape]
        return f"{self.start:g} to {self.stop:g}{shape}"
