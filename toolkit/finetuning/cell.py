"""A cell: one encoder, one task, one learning rate and one seed, on data that is already read and tokenized.

Prepare (read the files, open the encoder, tokenize) -> draw the head -> train -> answer -> decode -> score -> write.
One process can run many cells on one preparation.
"""

import math
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors import SafetensorError
from torch import nn
from transformers import set_seed

from toolkit.core.console import quiet_transformers
from toolkit.core.errors import UserError
from toolkit.core.files import atomic_write
from toolkit.core.settings import Settings
from toolkit.engine.precision import cpu_threads
from toolkit.finetuning.bad_rows import CheckedData
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.heads import has_head_file
from toolkit.finetuning.named.published_forms import DataFile
from toolkit.finetuning.precision import made_by
from toolkit.finetuning.prediction import answer, output_errors_named, write_notes, write_predictions
from toolkit.finetuning.settings import TASK_FILE, Initialization, Split
from toolkit.finetuning.task import Task
from toolkit.finetuning.trainer import Features
from toolkit.finetuning.training_folder import fit_once
from toolkit.model_folder import CARD_FILE, add_old_keys, card, card_facts, save_tokenizer, table

RESULT_FILE = "result.json"
"""Name of the file with the scores of a run."""
_MODEL, _UNFINISHED = "model", ".unfinished"


class FinetuningResult(Settings):
    """Scores of one run, by metric name; `metric` is the main one. Written as `result.json`."""

    task: str
    """The family of tasks."""
    model: str
    """The model, as the user named it."""
    dataset: str
    """Name of the data set; for files, the training file's, or its folder's where the file is called train."""
    protocol: str = "standard"
    """Protocol of inputs and metrics: `standard` or `paper`."""
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
    """Scores on the validation split; None without one."""
    test: dict[str, float]
    """Scores on the test split; none where it has no labels."""
    majority: float | None
    """The main metric on the test split of the best answer that reads no text, such as the training split's most
    frequent label; None where there is none."""
    made_by: dict[str, str] = Field(default_factory=dict)
    """Versions, device and compute dtype, on which the last digits of scores depend; empty where an older version has
    written the file."""
    bad_rows: list[dict[str, Any]] = Field(default_factory=list)
    """Rows of the data that were left out or not scored: file, reason, count and first places; absent without any."""
    form: str | None = None
    """Minimal pairs only: `causal` or `masked`."""
    pairs: int | None = None
    """Minimal pairs only: their number."""
    front: str | None = None
    """Minimal pairs only: the token prepended to each sentence if the tokenizer itself adds none."""


class Keep(StrEnum):
    """Outputs of a run other than scores and predictions."""

    MODEL = "model"
    SCORES = "scores"


@dataclass(frozen=True)
class PreparedTask:
    """A task's data, read once, and its inputs for one encoder, tokenized once."""

    task: Task[Any]
    source: EncoderSource
    dataset: str
    data: Any
    features: Mapping[Split, Features]


def prepare(
    task: Task[Any],
    files: Mapping[Split, DataFile],
    data: Any,
    source: EncoderSource,
    *,
    dataset_name: str | None = None,
) -> PreparedTask:
    """Tokenize the result of `task.read(files)` for an encoder; `dataset_name` replaces the files' own in results."""
    name = task.dataset(files) if dataset_name is None else dataset_name
    source = task.framed(source)
    if isinstance(data, CheckedData):
        data.bad.show()
    return PreparedTask(task, source, name, data, task.encode(data, source))


def run_cell(
    prepared: PreparedTask,
    output: Path,
    *,
    model_name: str,
    keep: Keep,
    training: Path | None = None,
) -> FinetuningResult:
    """Fine-tune, evaluate and write `model/`, `predictions.jsonl` and, last, `result.json`.

    A stopped cell is redone: it leaves nothing behind, and the results of an earlier one in `output` are unchanged.

    Args:
        model_name: name of the model in the results.
        keep: `SCORES` does not write `model/`.
        training: folder of trained weights shared by cells that differ only in their test data: the first one saves
            them there, the next ones load them. None: the cell trains its own.

    Raises:
        NonFiniteError: the training diverged.
    """
    task, data, source, features = prepared.task, prepared.data, prepared.source, prepared.features
    with cpu_threads(task.settings.threads), _unfinished(output, source) as unfinished:
        set_seed(task.settings.seed)
        network = task.network(data, source)
        rate = task.settings.peak_rate(sum(parameter.numel() for parameter in network.parameters()))
        inputs = features.get(Split.TRAIN, ())
        if training is None:
            task.fit(network, inputs, source, folder=unfinished / "training")
        else:
            fit_once(task, network, inputs, source, folder=training)
        predictions = answer(task, data, features, network, source)
        scores = task.score(data, predictions)
        _check_scores(task, scores)
        result = FinetuningResult(
            task=task.name,
            model=model_name,
            dataset=prepared.dataset,
            protocol=task.settings.protocol,
            initialization=source.initialization,
            seed=task.settings.seed,
            learning_rate=rate,
            steps=task.settings.num_steps(len(inputs)),
            metric=task.metric,
            validation=scores.get(Split.VALIDATION),
            test=scores.get(Split.TEST, {}),
            majority=task.baseline(data),
            made_by=made_by(torch.get_num_threads(), task.dtype),
            **task.result_fields(data, source),
        )
        if keep is Keep.MODEL:
            _save_model(prepared, network, unfinished / _MODEL, result)
        # As long as there is a result.json, everything beside it is from the same run.
        (output / RESULT_FILE).unlink(missing_ok=True)
        shutil.rmtree(output / _MODEL, ignore_errors=True)
        if keep is Keep.MODEL:
            (unfinished / _MODEL).rename(output / _MODEL)
        write_predictions(task, predictions[Split.TEST], output)
        atomic_write(output / RESULT_FILE, result.model_dump_json(indent=2, exclude_unset=True) + "\n")
        return result


def _check_scores(task: Task[Any], scores: Mapping[Split, Mapping[str, float]]) -> None:
    """Refuse missing or non-finite scores: no rate could be chosen, and restarted grids would find a damaged result."""
    for split, found in scores.items():
        for name in dict.fromkeys((task.metric, *found)):
            if not math.isfinite(found.get(name, math.nan)):
                raise UserError(
                    f"the task {task.name} scored the {split} split with {name} = {found.get(name)}, expected a finite "
                    "number. Correct its `score`."
                )


@contextmanager
def _unfinished(output: Path, source: EncoderSource) -> Iterator[Path]:
    """Temporary folder beside the results for incomplete output."""
    _check_replaceable(output / _MODEL, source)
    folder = output / _UNFINISHED
    shutil.rmtree(folder, ignore_errors=True)
    with output_errors_named(output):
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_replaceable(folder: Path, source: EncoderSource) -> None:
    if source.origin is not None and source.origin.resolve() == folder.resolve():
        raise UserError(
            f"{folder} is MODEL itself, and the fine-tuned model would take its place. Choose another output folder "
            "(--output)."
        )
    if folder.is_symlink():
        raise UserError(
            f"{folder} is a symbolic link, and a new model would have to take its place. Remove the link, or choose "
            "another output folder (--output)."
        )
    is_ours, is_empty = (folder / TASK_FILE).is_file(), folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_ours and not is_empty:
        raise UserError(
            f"{folder} exists, and is not a model that could be replaced: it has no {TASK_FILE}, so it was not "
            "fine-tuned by this toolkit. Choose another output folder (--output)."
        )


def _save_model(prepared: PreparedTask, network: nn.Module, folder: Path, result: FinetuningResult) -> None:
    """Write a new folder, never into that of a former run, whose files would be loaded together with these weights."""
    try:
        folder.mkdir(parents=True)
        save_tokenizer(folder, prepared.source.tokenizer)
        with quiet_transformers():
            prepared.task.save(network, folder, prepared.data)
        add_old_keys(folder)
        write_notes(prepared.task, prepared.data, prepared.source, folder)
        (folder / CARD_FILE).write_text(_model_card(prepared, result, folder), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"could not write the model to {folder}: {reason}. Free space, or choose another folder (--output)."
        ) from error


def _model_card(prepared: PreparedTask, result: FinetuningResult, folder: Path) -> str:
    """Text of README.md: usage and scores. Models and data by name, not by path on this machine."""
    scores = {"validation": result.validation, "test": result.test}
    known = result.test or result.validation or {}
    model, metrics = Path(result.model).name, sorted(known, key=lambda metric: metric != result.metric)
    title = f"{model}-{result.dataset}"
    use = prepared.task.usage(folder).replace(str(folder), title)
    # The module path, in lower case: `transformers` in `transformers.pipeline(...)`.
    module = re.match(r"[a-z_]+(?:\.[a-z_]+)*(?=\.)", use)
    rows = [[split, *(f"{found[metric]:.4f}" for metric in metrics)] for split, found in scores.items() if found]
    told = f"{result.steps:,} updates, peak learning rate {result.learning_rate:g}, seed {result.seed}"
    return card(
        [
            f"{model}, fine-tuned on {result.dataset} (`{result.task}`, protocol `{result.protocol}`): {told}.\n",
            f"## Use\n\n```python\nimport {module.group() if module else 'transformers'}\n\nprint({use})\n```\n",
            *([f"## Scores\n\n{table(rows, head=('', *metrics))}"] if rows else []),
        ],
        title=title,
        library="sentence-transformers" if (folder / "modules.json").exists() else "transformers",
        pipeline=Task.pipeline if has_head_file(folder) else prepared.task.pipeline,
        base=result.model,
        facts=card_facts(prepared.source.model),
    )
