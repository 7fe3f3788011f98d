"""Predictions of a fine-tuned folder for a file, as `finetune` makes them for its test file."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.engine.precision import cpu_threads
from toolkit.finetuning import Split, get_task, open_source, prepare
from toolkit.finetuning.cell import RESULT_FILE
from toolkit.finetuning.encoder_source import model_loading
from toolkit.finetuning.prediction import answer, noted_settings, output_errors_named, write_predictions
from toolkit.finetuning.settings import TASK_FILE


def predict(model: Path, file: Path, *, output: Path, changes: Mapping[str, Any] | None = None) -> int:
    """Write `predictions.jsonl`, and return its number of rows.

    Args:
        model: `model/` of a fine-tuning run, or the folder above it.
        file: in the format of the run's test file; labels may be missing.
        output: folder of the predictions.
        changes: settings for reading the file, in place of those of the fine-tuning run.

    Raises:
        UserError: the folder or the file does not fit, or `output` is the folder of a run.
    """
    folder = next((found for found in (model, model / "model") if (found / TASK_FILE).is_file()), None)
    if folder is None:
        raise UserError(
            f"{model} has no {TASK_FILE}, nor has {model / 'model'}: it was not fine-tuned by this toolkit. Give what "
            "`toolkit finetune` wrote."
        )
    if (output / RESULT_FILE).exists():
        raise UserError(
            f"{output} has the {RESULT_FILE} of a run, whose predictions.jsonl would be replaced. Choose another "
            "output folder (--output)."
        )
    notes = json.loads((folder / TASK_FILE).read_text(encoding="utf-8"))
    family = get_task(notes["task"])
    task = family(noted_settings(family, notes["settings"], changes or {}))
    with output_errors_named(output):
        output.mkdir(parents=True, exist_ok=True)
    data = task.read_open(file, folder, notes)
    source = replace(open_source(str(folder), attention=family.attention), max_length=notes["max_length"])
    with cpu_threads(task.settings.threads):
        prepared = prepare(task, {Split.TEST: file}, data, source)
        with model_loading(str(folder)):
            network = task.load(prepared.source, data).float()
        rows = answer(task, data, prepared.features, network, prepared.source)[Split.TEST]
    write_predictions(task, rows, output)
    return len(rows)
