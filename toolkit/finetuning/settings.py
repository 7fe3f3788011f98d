"""What a fine-tuning run can be told, and what it does when it is not told."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from toolkit.core.settings import Settings

Name = Annotated[str, Field(min_length=1)]


class Initialization(StrEnum):
    """Where the encoder's weights come from; the head is always new."""

    PRETRAINED = "pretrained"
    RANDOM = "random"


class FinetuningSettings(Settings):
    """One fine-tuning run. The defaults are the recipe's: AdamW, 1,000 steps of 32, 10 % warm-up, then linear to 0."""

    learning_rate: float = Field(default=5e-5, gt=0, allow_inf_nan=False)
    """Peak of the schedule. The right one differs by model and data set; the recipe tries 1e-5 to 5e-4."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Decides the head's initial weights, the order of the examples and, for a random encoder, its weights."""
    steps: int = Field(default=1000, ge=1)
    """Optimizer updates; the training file is read again as often as needed."""
    batch_rows: int = Field(default=32, ge=1)
    """Examples per update."""
    warmup_fraction: float = Field(default=0.1, ge=0, le=1)
    """Share of the steps over which the learning rate rises from 0."""
    adam_betas: tuple[float, float] = Field(default=(0.9, 0.95), strict=False)
    """Decay of AdamW's two running means."""
    adam_eps: float = Field(default=1e-5, gt=0)
    """AdamW's denominator offset."""
    weight_decay: float = Field(default=0.1, ge=0)
    """AdamW's decay; biases and norms are left out, as transformers' Trainer does."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    max_length: int | None = Field(default=None, ge=2)
    """Tokens of an input, specials included; longer ones are cut. Unset: what model and tokenizer allow."""
    text_columns: tuple[Name, ...] | None = Field(default=None, min_length=1, max_length=2, strict=False)
    """The column of the text, or the two of a pair. Unset: `text`, with `text_pair` where the training file has it."""
    label_column: Name = "label"
    """The column of the label."""
