"""Scores of a fine-tuning run and the files it writes."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field

from toolkit.core.files import atomic_write
from toolkit.core.settings import Settings
from toolkit.finetuning.examples import Label
from toolkit.finetuning.settings import Initialization

SEQUENCE_CLASSIFICATION_METRIC = "accuracy"


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


def write_labels(labels: Sequence[Label], folder: Path) -> None:
    """Write `labels.json`: the label of each class number, with its type."""
    (folder / "labels.json").write_text(json.dumps(list(labels), ensure_ascii=False) + "\n", encoding="utf-8")


def classification_scores(truth: Sequence[int], prediction: Sequence[int]) -> dict[str, float]:
    """`accuracy`, `f1_macro` over the classes that occur, and `mcc` (Matthews' correlation), from class numbers."""
    from sklearn import metrics

    return {
        "accuracy": float(metrics.accuracy_score(truth, prediction)),
        "f1_macro": float(metrics.f1_score(truth, prediction, average="macro", zero_division=0)),
        "mcc": float(metrics.matthews_corrcoef(truth, prediction)),
    }
