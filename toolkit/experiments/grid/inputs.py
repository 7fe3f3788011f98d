"""Resolved tasks and models of a grid file: settings, files, encoders, and the hashes that identify them."""

import hashlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

import torch

from tokenization.hub import HubName
from toolkit.checkpoint.manifest import MANIFEST_NAME, manifest_bytes
from toolkit.checkpoint.read import open_checkpoint
from toolkit.core.cache import KnownHashes
from toolkit.core.console import console
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.core.locks import locked_file
from toolkit.core.text import counted, home_hint
from toolkit.core.types import AttentionKind
from toolkit.engine.gpus import has_gpu
from toolkit.experiments.encoders import export_encoder, needs_export
from toolkit.experiments.grid.cells import task_settings
from toolkit.experiments.grid.declaration import RANDOM_WEIGHTS, ModelEntry, TaskEntry
from toolkit.finetuning import (
    EncoderSource,
    FinetuningSettings,
    Initialization,
    Split,
    Task,
    get_task,
    open_source,
)
from toolkit.finetuning.encoder_source import model_loading
from toolkit.finetuning.named.datasets import NamedDataset, named_dataset
from toolkit.finetuning.named.published_forms import DataFile, PublishedSplit
from toolkit.model_folder import CONFIG_FILE, read_config
from toolkit.run.folder import RunFolder, kept_checkpoints


class HubAccess(Enum):
    """What may be requested from the Hugging Face hub."""

    FETCHED = auto()
    """Anything missing from the local cache."""
    CACHED = auto()
    """Nothing: what is missing from the local cache stays unresolved."""


@dataclass(frozen=True)
class ResolvedTask:
    """A task with the settings of its kind and of the grid."""

    entry: TaskEntry
    settings: FinetuningSettings
    files: dict[Split, DataFile]
    """Empty before they are fetched."""
    hashes: Mapping[str, Mapping[str, str]] | None
    """SHA-256 of each file that is read, by split; None before the files are fetched."""
    form: str | None
    """Source name of a data set's training split, or the training file if it has none; None without a data set."""
    is_threads_open: bool
    """Whether the grid leaves `threads` to each machine."""

    @property
    def training_data(self) -> list[Any]:
        """Identity of the training data: tasks with equal identities train on the same data."""
        if self.hashes is None:
            return [self.form]
        # Without a validation file, part of the training file may be held out for validation.
        return [self.hashes.get(Split.TRAIN, self.hashes), Split.VALIDATION in self.hashes]


@dataclass(frozen=True)
class ResolvedModel:
    """A model: the location of its encoder, and the identity of its contents."""

    entry: ModelEntry
    encoder: str
    """Folder or hub id; for a checkpoint, the folder to which the first worker that needs it exports it."""
    contents: Mapping[str, str] | None
    """File hashes, or the commit of a hub id; None before the model is fetched."""
    checkpoint: Path | None = None
    """Checkpoint of this toolkit; None for other encoders."""
    initialization: Initialization = Initialization.PRETRAINED

    @property
    def source(self) -> str:
        """Path of its weights; for a twin, of the model that it mirrors."""
        return self.encoder if self.checkpoint is None else str(self.checkpoint)

    def twin(self, entry: ModelEntry) -> "ResolvedModel":
        """Model of the same shape and tokenizer, with random weights."""
        contents = None if self.contents is None else {**self.contents, "weights": RANDOM_WEIGHTS}
        return replace(self, entry=entry, contents=contents, initialization=Initialization.RANDOM)

    def open(self, *, max_length: int | None, attention: AttentionKind | None) -> EncoderSource:
        """Open the encoder; export it first if no other worker has."""
        if self.checkpoint is not None:
            folder = Path(self.encoder)
            with locked_file(folder.with_name(f".{folder.name}.lock")):
                if not folder.is_dir():
                    export_encoder(self.checkpoint, folder)
        return open_source(
            self.encoder,
            initialization=self.initialization,
            max_length=max_length,
            origin=self.checkpoint,
            attention=attention,
        )


def resolve_task(
    entry: TaskEntry, options: dict[str, Any], *, num_rates: int, hub: HubAccess, known: KnownHashes
) -> ResolvedTask:
    """Resolve a task of the grid, with options of its kind, that is run at `num_rates` learning rates."""
    family = get_task(entry.kind)
    place = f"[[task]] {entry.name}"
    settings = task_settings(entry, options)
    form: str | None = None
    files: dict[Split, DataFile] = {Split(split): path for split, path in entry.files.items()}
    for split, path in entry.files.items():
        if not path.exists():
            raise SettingsError(f"{place}: {split} = '{path}' does not exist.{home_hint(path)} Check the path.")
    named = None if entry.dataset is None else named_dataset(entry.dataset, task=entry.kind)
    if named is not None:
        shared = options.keys() - entry.options.keys()
        if "steps" in shared and settings.epochs is not None:
            console().print(
                f"{place}: {counted(settings.epochs, 'pass', 'passes')} over the training file of {named.name}, as "
                f"the paper's runs; grid.steps = {options['steps']} is for the other tasks. For another number, set "
                "steps in this task."
            )
    is_threads_open = settings.threads is None
    if is_threads_open and not has_gpu():
        settings = settings.model_copy(update={"threads": torch.get_num_threads()})
    try:
        reader = family(settings)
        if named is not None:
            named.check_given(files, settings.protocol, needed=[Split.TRAIN] if entry.is_trained else [])
    except SettingsError as error:
        raise SettingsError(f"{place}: {error}") from None
    if named is not None:
        _check_choice(place, named, settings.protocol, num_rates, entry.files)
        own = named.splits(settings.protocol)
        form = own[Split.TRAIN].name if Split.TRAIN in own else entry.train
        found = named.fetch(settings.protocol) if hub is HubAccess.FETCHED else named.cached(settings.protocol)
        files = {**files, **found} if found else {}
    hashes = {split.value: _hash_files(reader, split, path, known) for split, path in files.items()} or None
    return ResolvedTask(entry, settings, files, hashes, form, is_threads_open)


def _check_choice(place: str, named: NamedDataset, protocol: str, num_rates: int, given: Collection[str]) -> None:
    is_cut = protocol == "paper" and Split.TRAIN in given
    if num_rates > 1 and Split.VALIDATION not in (*named.splits(protocol), *given) and not is_cut:
        other = "paper" if protocol == "standard" else "standard"
        remedy = f", or protocol = '{other}'" if Split.VALIDATION in named.splits(other) else ""
        raise SettingsError(
            f"{place} has {counted(num_rates, 'learning rate')}, and the data set {named.name} has no validation split "
            f"under protocol = '{protocol}' to choose one by. Give validation, a single one in learning_rates{remedy}."
        )


def _hash_files(reader: Task[Any], split: Split, given: DataFile, known: KnownHashes) -> dict[str, str]:
    if isinstance(given, PublishedSplit):
        return {name: known.hash(file) for name, file in given.named_files.items()}
    root = given if given.is_dir() else given.parent
    return {
        file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name: known.hash(file)
        for file in reader.files_of(split, given)
    }


def at_steps(entry: ModelEntry) -> list[ModelEntry]:
    """The entry itself, or one entry per checkpoint of its run that `steps` names, sorted by step."""
    if entry.steps is None:
        return [entry]
    written = f'"{entry.steps}"' if isinstance(entry.steps, str) else list(entry.steps)
    asked = f"[[model]] {entry.name}: steps = {written}"
    return [
        ModelEntry(
            name=f"{entry.name}@{step}",
            path=str(path),
            labels={**entry.labels, "run": entry.name, "training_step": step},
        )
        for step, path in kept_checkpoints(Path(entry.path), entry.chosen, asked=asked, option="steps")
    ]


def resolve_models(entry: ModelEntry, exports: Path, *, hub: HubAccess, known: KnownHashes) -> list[ResolvedModel]:
    """Resolve the models of an entry; `all` or a range of a run's checkpoints means those that are intact now."""
    found, damage = list[ResolvedModel](), list[CheckpointError]()
    for each in at_steps(entry):
        try:
            found.append(resolve_model(each, exports, hub=hub, known=known))
        except CheckpointError as error:
            if not isinstance(entry.steps, str):
                raise
            damage.append(error)
    if damage and not found:
        raise damage[0]
    if isinstance(entry.steps, str):
        steps = ", ".join(str(model.entry.labels["training_step"]) for model in found)
        later = "; it is training: the same command adds later ones" if RunFolder(entry.path).is_in_use else ""
        console().print(f"[[model]] {entry.name}: checkpoints of {entry.path} as they are now: steps {steps}{later}")
        for left_out in damage:
            console().print(f"[[model]] {entry.name}: left out: {left_out}")
    return found


def resolve_model(entry: ModelEntry, exports: Path, *, hub: HubAccess, known: KnownHashes) -> ResolvedModel:
    """Resolve a model of the grid; encoders of checkpoints will be in `exports`."""
    if needs_export(entry.path):
        checkpoint = open_checkpoint(entry.path)
        # The run may meanwhile strip this checkpoint down to its weights (checkpoint.keep_weights_only).
        digest = hashlib.sha256(manifest_bytes(checkpoint.manifest.without_moments())).hexdigest()
        exported = str(exports / f"{entry.name}-{digest[:16]}")
        return ResolvedModel(entry, exported, {MANIFEST_NAME: digest}, checkpoint.path)
    folder = Path(entry.path)
    if folder.is_dir():
        # Of a SentenceTransformer, 1_Pooling/config.json and the like too.
        inner = folder.glob("[0-9]*_*/*") if (folder / "modules.json").is_file() else ()
        files = (file for file in sorted((*folder.iterdir(), *inner)) if file.is_file() and file.name[0] != ".")
        contents = {file.relative_to(folder).as_posix(): known.hash(file) for file in files if file.suffix != ".md"}
        return ResolvedModel(entry, entry.path, contents)
    if hub is HubAccess.CACHED and "@" not in entry.path and HubName.parse(entry.path):
        commit = None
        with suppress(OSError, ValueError):
            commit = _commit_of(entry.path, local_files_only=True)
        return ResolvedModel(entry, entry.path, None if commit is None else {"commit": str(commit)})
    with model_loading(entry.path):
        read_config(entry.path)
        commit = _commit_of(entry.path)
    return ResolvedModel(entry, entry.path, {"commit": str(commit)})


def _commit_of(model: str, *, local_files_only: bool = False) -> str | None:
    """Commit of a model on the hub, from the path of its configuration in the cache.

    Errors of transformers pass through.
    """
    from transformers.utils.hub import cached_file, extract_commit_hash

    file = cached_file(model, CONFIG_FILE, local_files_only=local_files_only)
    commit: str | None = extract_commit_hash(file, None)
    return commit
