"""Settings of minimal pairs; needs no torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from toolkit.finetuning.settings import FinetuningSettings

Form = Literal["causal", "masked"]


class MinimalPairsSettings(FinetuningSettings):
    """Scoring of minimal pairs; nothing is trained."""

    learning_rate: float | None = 0.0
    """0: nothing is trained."""
    steps: int = 0
    """0."""
    form: Form | None = Field(default=None)
    """`causal`: log-likelihood by the chain rule. `masked`: pseudo-log-likelihood, one token masked at a time. Unset:
    what the model is; of a run or a checkpoint, the attention of the phase that it was last trained in."""

    @model_validator(mode="after")
    def _check_given(self) -> Self:
        if training := sorted(self.model_fields_set - {"form", "threads"}):
            raise ValueError(f"minimal pairs train nothing, so {', '.join(training)} cannot be set. Leave it out")
        return self
