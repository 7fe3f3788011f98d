"""One fine-tuning run: its settings, its scores, and the files that hold them."""

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from toolkit.core.files import atomic_write
from toolkit.core.settings import Settings

SEQUENCE_CLASSIFICATION_METRIC = "accuracy"
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


class FinetuningResult(Settings):
    """Scores of one run, by metric name; `metric` is the main one. Written as `result.json`."""

    task: str
    """`sc`."""
    model: str
    """The model, as the user named it."""
    dataset: str
    """Name of the data: the training file's, or its folder's where the file is called train."""
    initialization: Initialization = Field(strict=False)
    """Whether the encoder was pretrained or a random twin."""
    seed: int
    """Seed of the head, the data order and a random encoder."""
    learning_rate: float
    """Peak learning rate."""
    steps: int
    """Optimizer updates."""
    metric: str
    """The main metric."""
    validation: dict[str, float] | None
    """Scores on the validation file; None without one."""
    test: dict[str, float]
    """Scores on the test file."""
    majority: float
    """Accuracy on the test file of always answering the training file's most frequent label."""


def write_result(result: FinetuningResult, folder: Path) -> None:
    """Write `result.json`, whole or not at all."""
    atomic_write(folder / "result.json", result.model_dump_json(indent=2) + "\n")


def write_predictions(rows: Iterable[dict[str, object]], folder: Path) -> None:
    """Write `predictions.jsonl`, one object per test row in order."""
    with (folder / "predictions.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def classification_scores(truth: Sequence[int], prediction: Sequence[int]) -> dict[str, float]:
    """`accuracy`, `f1_macro` over the classes that occur, and `mcc` (Matthews' correlation), from class numbers."""
    from sklearn import metrics

    return {
        "accuracy": float(metrics.accuracy_score(truth, prediction)),
        "f1_macro": float(metrics.f1_score(truth, prediction, average="macro", zero_division=0)),
        "mcc": float(metrics.matthews_corrcoef(truth, prediction)),
    }
