"""Predictions of a trained network, and the notes in a fine-tuned folder that let it predict again."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from toolkit.core.errors import UserError
from toolkit.core.files import atomic_write
from toolkit.core.settings import validated
from toolkit.engine.gpus import has_gpu
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.settings import TASK_FILE, FinetuningSettings, Split
from toolkit.finetuning.task import Prediction, Task
from toolkit.finetuning.trainer import Features


def answer(
    task: Task[Any], data: Any, features: Mapping[Split, Features], network: nn.Module, source: EncoderSource
) -> Mapping[Split, list[Prediction]]:
    """Predictions of a trained network for all splits but the training split; moves it to the device that they use."""
    # One that was not trained here, or has loaded its weights, is still on the CPU.
    network.to("cuda" if has_gpu() else "cpu")
    answered: dict[Split, Features] = {split: rows for split, rows in features.items() if split is not Split.TRAIN}
    return task.decode(data, answered, task.answer_splits(network, answered, source))


@contextmanager
def output_errors_named(output: Path) -> Iterator[None]:
    """Turn an OS error on creating the output folder into a `UserError` with a remedy."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"could not create the output folder {output}: {error.strerror}. Choose another one (--output)."
        ) from error


def write_predictions(task: Task[Any], predictions: Iterable[Prediction], output: Path) -> None:
    """Write `predictions.jsonl`."""
    rows = (json.dumps(task.row(prediction), ensure_ascii=False) + "\n" for prediction in predictions)
    atomic_write(output / "predictions.jsonl", "".join(rows))


def noted_settings(family: type[Task[Any]], noted: Mapping[str, Any], changes: Mapping[str, Any]) -> FinetuningSettings:
    """Settings from the notes in a fine-tuned folder, which have every one of them, with changes.

    A noted default counts as not given: settings may exclude one another, as steps and epochs do.
    """
    defaults = family.Settings().model_dump(mode="json")
    given = {key: value for key, value in noted.items() if key not in defaults or value != defaults[key]}
    return validated(family.Settings, given | {**changes})


def write_notes(task: Task[Any], data: Any, source: EncoderSource, folder: Path) -> None:
    """Write the notes that `toolkit predict` reads, beside the model."""
    settings = task.settings.model_dump(mode="json")
    notes = {"task": task.name, "settings": settings, "max_length": source.max_length, **task.notes(data)}
    (folder / TASK_FILE).write_text(json.dumps(notes, indent=2) + "\n", encoding="utf-8")
