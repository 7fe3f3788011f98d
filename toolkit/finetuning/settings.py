"""Settings of a fine-tuning run that all families of tasks share."""

import math
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from toolkit.core.settings import Settings

_LARGE_MODEL = 100_000_000
UNTRAINED = frozenset({"pairs"})
"""Tasks that train nothing: they have one file, and neither learning rates nor seeds."""
TASK_FILE = "finetuning.json"
"""Name of the file with task, settings and other notes in a fine-tuned `model/`."""
Name = Annotated[str, Field(min_length=1)]
_Beta = Annotated[float, Field(ge=0, lt=1)]
SPLIT_AT_COMMAS = BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)


class Split(StrEnum):
    """Purpose of a file of examples."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


class Initialization(StrEnum):
    """Origin of the encoder's weights; the head is always new."""

    PRETRAINED = "pretrained"
    RANDOM = "random"


class FinetuningSettings(Settings):
    """One fine-tuning run. The defaults are the recipe's: AdamW, 1,000 steps of 32, 10 % warm-up, then linear to 0."""

    protocol: Literal["standard", "paper"] = "standard"
    """`standard`: the usual inputs and metrics. `paper`: the paper's, comparable only with its tables."""
    metric: str | None = None
    """Main metric, one of the task's scores, which also chooses the learning rate. Unset: the task's default."""
    bad_rows: Literal["error", "skip"] = "error"
    """Rows of the data that cannot be used. `skip`: leave them out and report them."""
    learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Peak learning rate. Unset: 5e-5, and 2e-5 above 100 million parameters. The recipe tries 1e-5 to 5e-4."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the head's initial weights, the data order and a random encoder's weights."""
    steps: int = Field(default=1000, ge=1)
    """Optimizer updates; the training file is repeated as needed."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the training file, instead of `steps`."""
    batch_rows: int = Field(default=32, ge=1)
    """Examples per update."""
    micro_rows: int | None = Field(default=None, ge=1)
    """Examples per forward pass, to save memory: a divisor of `batch_rows`. The update is the same except for rounding
    and dropout draws. Unset: the whole batch."""
    warmup_fraction: float = Field(default=0.1, ge=0, le=1)
    """Fraction of the steps for linear warm-up."""
    adam_betas: tuple[_Beta, _Beta] = Field(default=(0.9, 0.95), strict=False)
    """AdamW's betas."""
    adam_eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    """AdamW's epsilon."""
    weight_decay: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    """AdamW's weight decay; not applied to biases and norms."""
    grad_clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Maximum gradient norm."""
    max_length: int | None = Field(default=None, ge=2)
    """Maximum input length in tokens, special ones included. Unset: the limit of model and tokenizer."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; the last digits of results depend on them. Unset: `OMP_NUM_THREADS`, or all cores."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if {"steps", "epochs"} <= self.model_fields_set and self.epochs is not None:
            raise ValueError("steps and epochs are both given. Leave one of the two out.")
        if self.micro_rows is not None and self.batch_rows % self.micro_rows:
            raise ValueError(
                f"micro_rows = {self.micro_rows} does not divide batch_rows = {self.batch_rows}. Choose a divisor, "
                f"such as {math.gcd(self.micro_rows, self.batch_rows)}."
            )
        return self

    @property
    def rows_at_once(self) -> int:
        """Examples per forward pass."""
        return self.batch_rows if self.micro_rows is None else self.micro_rows

    def peak_rate(self, num_parameters: int) -> float:
        """Peak learning rate for a model of `num_parameters` parameters."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 2e-5 if num_parameters > _LARGE_MODEL else 5e-5

    def num_steps(self, num_inputs: int) -> int:
        """Number of optimizer updates for `num_inputs` training inputs."""
        return self.steps if self.epochs is None else self.epochs * -(-num_inputs // self.batch_rows)


Form = Literal["causal", "masked"]


class MinimalPairsSettings(FinetuningSettings):
    """Scoring of minimal pairs; nothing is trained."""

    learning_rate: float | None = 0.0
    """0: nothing is trained."""
    steps: int = 0
    """0."""
    form: Form | None = Field(default=None)
    """`causal`: log-likelihood by the chain rule. `masked`: pseudo-log-likelihood, one token masked at a time. Unset:
    the model's own; for a run or a checkpoint, the attention of the phase that it was last trained in."""

    @model_validator(mode="after")
    def _check_given(self) -> Self:
        if training := sorted(self.model_fields_set - {"form", "threads"}):
            raise ValueError(f"minimal pairs train nothing, so {', '.join(training)} cannot be set. Leave it out")
        return self
