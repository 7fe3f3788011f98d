"""Fine-tuning of MODEL: a run or checkpoint is converted first, an encoder is used as is."""

import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolkit.core.errors import SettingsError
from toolkit.experiments.encoders import check_model, export_encoder, needs_export
from toolkit.finetuning import (
    FinetuningResult,
    FinetuningSettings,
    Initialization,
    Keep,
    Split,
    get_task,
    open_source,
    prepare,
    run_cell,
)
from toolkit.finetuning.named.datasets import known_datasets, named_dataset
from toolkit.finetuning.named.published_forms import DataFile
from toolkit.finetuning.settings import UNTRAINED


def finetune(
    task: str,
    model: str | Path,
    *,
    output: Path,
    train: Path | None = None,
    test: Path | None = None,
    validation: Path | None = None,
    dataset: str | None = None,
    settings: FinetuningSettings | None = None,
    initialization: Initialization = Initialization.PRETRAINED,
) -> FinetuningResult:
    """Fine-tune an encoder on labelled data and evaluate it.

    Args:
        task: name of a task family: `sc`, or one from another package.
        model: folder or hub id of a Hugging Face encoder, or a run or checkpoint of this toolkit.
        output: folder for `result.json`, `predictions.jsonl` (one row per test example, in order) and `model/`.
        train: training file, in the family's format.
        test: evaluated at the end.
        validation: also evaluated at the end, if given.
        dataset: name of a data set on the hub, instead of files; splits that it lacks may be given as files.
        settings: instance of the family's settings class; None for the defaults.
        initialization: `RANDOM` trains a model of the same configuration with weights drawn from the seed.

    Raises:
        UserError: a file, a column, a label or the model does not fit; raised before training.
        NonFiniteError: the training diverged.
    """
    family = get_task(task)
    settings = family.Settings() if settings is None else settings
    given = {Split.TRAIN: train, Split.VALIDATION: validation, Split.TEST: test}
    files: dict[Split, DataFile] = {split: path for split, path in given.items() if path is not None}
    is_trained = task not in UNTRAINED and (settings.steps or settings.epochs)
    named = None if dataset is None else named_dataset(dataset, task=task)
    needed = (Split.TRAIN, Split.TEST) if is_trained else (Split.TEST,)
    if named is None:
        _check_data(task, files, needed=needed)
    else:
        named.check_given(files, settings.protocol, needed=needed)
    # Raises if the settings do not fit the family.
    chosen = family(settings)
    # Before data are read or fetched; without a data set, a checkpoint is read only when it is exported.
    if dataset is not None or not needs_export(model):
        check_model(model, [chosen], initialization=initialization)
    if named is not None:
        settings = named.settings(settings)
        files |= named.fetch(settings.protocol)
    chosen = family(settings)
    data = chosen.read(files)
    with _as_encoder(model) as (encoder, origin):
        source = open_source(
            str(encoder),
            initialization=initialization,
            max_length=chosen.settings.max_length,
            origin=origin,
            attention=family.attention,
        )
        prepared = prepare(chosen, files, data, source, dataset_name=dataset if train is None else None)
        keep = Keep.SCORES if task in UNTRAINED else Keep.MODEL
        return run_cell(prepared, output, model_name=str(model), keep=keep)


def _check_data(task: str, files: Collection[Split], *, needed: Sequence[Split]) -> None:
    if missing := [f"--{split}" for split in needed if split not in files]:
        files_of_own, sets = " and ".join(f"--{split}" for split in needed), known_datasets(task)
        named = f", or --dataset with the name of a data set: {', '.join(sets)}" if sets else ""
        raise SettingsError(f"no data to fine-tune on: {' and '.join(missing)} missing. Give {files_of_own}{named}.")


@contextmanager
def _as_encoder(model: str | Path) -> Iterator[tuple[str | Path, Path | None]]:
    """Yield MODEL as a Hugging Face folder or hub id, valid inside the block, and its source checkpoint, if any."""
    if not needs_export(model):
        yield model, None
        return
    with tempfile.TemporaryDirectory(prefix="toolkit-finetune-") as scratch:
        encoder = Path(scratch) / "encoder"
        yield encoder, export_encoder(model, encoder)
