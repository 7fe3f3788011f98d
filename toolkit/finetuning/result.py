"""What a fine-tuning run leaves behind."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field

from toolkit.core.settings import Settings
from toolkit.finetuning.examples import Label
from toolkit.finetuning.settings import Initialization


class FinetuningResult(Settings):
    """Scores of one run, by metric name; `metric` is the main one. Written as `result.json`."""

    task: str
    """`sc`."""
    model: str
    """What was fine-tuned, as it was named."""
    dataset: str
    """Name of the data: the training file's, or its folder's where the file is called train."""
    initialization: Initialization = Field(strict=False)
    """Whether the encoder was pretrained or a random twin."""
    seed: int
    """Of head, order and random encoder."""
    learning_rate: float
    """Peak."""
    steps: int
    """Updates made."""
    metric: str
    """The main metric."""
    validation: dict[str, float] | None
    """Scores on the validation file, None without one."""
    test: dict[str, float]
    """Scores on the test file."""
    majority: float
    """Accuracy on the test file of always answering the training file's most frequent label."""


def write_result(result: FinetuningResult, folder: Path) -> None:
    """Write `result.json`, whole or not at all."""
    unfinished = folder / ".result.json"
    unfinished.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    unfinished.replace(folder / "result.json")


def write_predictions(rows: Iterable[dict[str, object]], folder: Path) -> None:
    """Write `predictions.jsonl`, one object per test row in order."""
    with (folder / "predictions.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_labels(labels: Sequence[Label], folder: Path) -> None:
    """Write `labels.json`: the label of each class number, with its type."""
    (folder / "labels.json").write_text(json.dumps(list(labels), ensure_ascii=False) + "\n", encoding="utf-8")
