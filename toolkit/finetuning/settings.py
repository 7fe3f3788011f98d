"""Settings of a fine-tuning run."""

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
    """Peak learning rate. The best one differs by model and data set; the recipe tries 1e-5 to 5e-4."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the head's initial weights, the data order and, for a random encoder, its weights."""
    steps: int = Field(default=1000, ge=1)
    """Optimizer updates; the training file is read again as often as needed."""
    batch_rows: int = Field(default=32, ge=1)
    """Examples per update."""
    warmup_fraction: float = Field(default=0.1, ge=0, le=1)
    """Share of the steps over which the learning rate rises from 0."""
    adam_betas: tuple[float, float] = Field(default=(0.9, 0.95), strict=False)
    """AdamW's betas."""
    adam_eps: float = Field(default=1e-5, gt=0)
    """AdamW's epsilon."""
    weight_decay: float = Field(default=0.1, ge=0)
    """AdamW's weight decay; biases and norms are excluded, as transformers' Trainer does."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    max_length: int | None = Field(default=None, ge=2)
    """Tokens of an input with its special tokens; longer ones are truncated. Unset: what model and tokenizer allow."""
    text_columns: tuple[Name, ...] | None = Field(default=None, min_length=1, max_length=2, strict=False)
    """Column of the text, or both of a text pair. Unset: `text`, and `text_pair` if the training file has it."""
    label_column: Name = "label"
    """Column of the label."""
