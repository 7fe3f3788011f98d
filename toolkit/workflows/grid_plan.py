"""A grid, resolved: the settings and files of each task, the encoder of each model, and what tells data apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from transformers import AutoConfig

from toolkit.checkpoint.manifest import MANIFEST_NAME
from toolkit.checkpoint.read import open_checkpoint
from toolkit.core.console import console
from toolkit.core.errors import SettingsError
from toolkit.core.files import hash_file
from toolkit.core.settings import explain
from toolkit.core.text import counted, first_few, home_hint
from toolkit.engine.precision import Precision
from toolkit.experiments import Cell, CellFolder, Grid, Job, ModelEntry, Score, TaskEntry, differences, grid_cells
from toolkit.finetuning import FinetuningSettings, Keep, Split, get_task
from toolkit.finetuning.precision import choose_autocast
from toolkit.finetuning.source import model_loading
from toolkit.workflows.finetune import needs_export, resolve_data
from toolkit.workflows.grid_worker import CellTask, EncoderPlace

_EXPORTS, _LOCKS = ".encoders", ".locks"
_MOST_SHOWN = 8


@dataclass(frozen=True)
class ResolvedTask:
    """Settings of a task's kind, its files, and the SHA-256 of each file that is read."""

    entry: TaskEntry
    settings: FinetuningSettings
    files: dict[Split, Path]
    hashes: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class ResolvedModel:
    """Where a model's encoder is, and what it consists of: hashes of files, or the commit of a hub id."""

    entry: ModelEntry
    encoder: EncoderPlace
    contents: Mapping[str, str]


class GridPlan:
    """What a grid file declares, with everything that its cells need.

    Args:
        grid: of the file.

    Attributes:
        folder: `grid.dir`.
        cells: all, in the order in which a single worker runs them.

    Raises:
        UserError: a path does not exist, or a setting does not fit its kind.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid, self.folder = grid, Path(grid.grid.dir)
        self.cells = grid_cells(grid)
        self._cpu_precisions: dict[int, Precision] = {}
        self._tasks = {entry.name: _resolve_task(entry, grid.options(entry)) for entry in grid.task}
        self._models = {entry.name: _resolve_model(entry, self.exports) for entry in grid.model}

    @property
    def exports(self) -> Path:
        """Folder of encoders that are made from checkpoints; needed while the grid runs."""
        return self.folder / _EXPORTS

    @property
    def locks(self) -> Path:
        """Folder of the locks that cells hold while they run; needed while the grid runs."""
        return self.folder / _LOCKS

    @cached_property
    def thread_counts(self) -> list[int]:
        """CPU threads of cells, each number once, ascending; empty on a GPU."""
        found = {self._settings(cell).threads for cell in self.cells}
        return sorted(number for number in found if number is not None)

    def choose_precisions(self) -> None:
        """Measure here, where it is not known yet, what cells compute in on a CPU.

        Workers that start together would measure beside one another, and those of other machines might decide
        otherwise.
        """
        self._cpu_precisions = {number: choose_autocast(number) for number in self.thread_counts}

    def place(self, cell: Cell) -> CellFolder:
        """The folder of a cell."""
        return CellFolder(self.folder / "cells" / cell.path, cell)

    def job(self, cell: Cell) -> Job:
        """What a worker gets."""
        task, model = self._tasks[cell.task], self._models[cell.model]
        keep = Keep.MODEL if self.grid.grid.keep_models else Keep.SCORES
        output, settings = self.place(cell).path, self._settings(cell)
        return Job(
            cell,
            CellTask(
                settings=settings,
                files=task.files,
                dataset=task.entry.dataset,
                model=model.entry.path,
                encoder=model.encoder,
                output=output,
                record=self.record(cell),
                keep=keep,
                lock=self.locks / f"{cell.path}.lock",
                cpu_precision=None if settings.threads is None else self._cpu_precisions.get(settings.threads),
            ),
        )

    def record(self, cell: Cell) -> dict[str, Any]:
        """What a cell is: its result is that of another one where this differs."""
        return {
            "kind": cell.kind,
            "settings": self._settings(cell).model_dump(mode="json"),
            "model": dict(self._models[cell.model].contents),
            "data": {split: dict(files) for split, files in self._tasks[cell.task].hashes.items()},
        }

    def finished(self) -> dict[Cell, Score]:
        """Scores of the cells that have finished.

        Raises:
            SettingsError: one was declared otherwise, or had other data; what differs is named.
        """
        scores: dict[Cell, Score] = {}
        changed: dict[Cell, list[str]] = {}
        for cell in self.cells:
            score = self.place(cell).score
            if score is None:
                continue
            scores[cell] = score
            if found := self._changes(cell):
                changed[cell] = found
        if changed:
            raise SettingsError(self._refusal(changed))
        return scores

    def _changes(self, cell: Cell) -> list[str]:
        was = self.place(cell).declared
        if was is None:
            return ["it has no declared.json, so a grid did not run it"]
        # A setting that a later version has added had its default.
        defaults = get_task(cell.kind).Settings().model_dump(mode="json")
        return differences({**was, "settings": {**defaults, **was.get("settings", {})}}, self.record(cell))

    def _refusal(self, changed: Mapping[Cell, list[str]]) -> str:
        by_difference: dict[str, list[Cell]] = {}
        for cell, found in changed.items():
            for difference in found:
                by_difference.setdefault(difference, []).append(cell)
        lines = [
            f"{difference} ({counted(len(cells), 'cell')}: {first_few([cell.path for cell in cells])})"
            for difference, cells in by_difference.items()
        ]
        more = [f"and {len(lines) - _MOST_SHOWN} more differences"] if len(lines) > _MOST_SHOWN else []
        return "\n  ".join(
            [
                f"{counted(len(changed), 'finished cell')} in {self.folder} had another declaration or other data:",
                *lines[:_MOST_SHOWN],
                *more,
                "Restore what they ran with, set grid.dir to another folder, or remove their folders below "
                f"{self.folder / 'cells'} to run them again.",
            ]
        )

    def _settings(self, cell: Cell) -> FinetuningSettings:
        own = {"seed": cell.seed, "learning_rate": cell.learning_rate}
        return self._tasks[cell.task].settings.model_copy(update=own)


def _resolve_task(entry: TaskEntry, options: dict[str, Any]) -> ResolvedTask:
    family = get_task(entry.kind)
    place = f"[[task]] {entry.name}"
    # As on the command line: text_columns = "premise,hypothesis".
    if isinstance(options.get("text_columns"), str):
        options["text_columns"] = options["text_columns"].split(",")
    try:
        settings = family.Settings.model_validate(options)
    except ValidationError as error:
        raise SettingsError(f"{place}: {explain(error, family.Settings)}") from None
    files = {Split(split): path for split, path in entry.files.items()}
    for split, path in files.items():
        if not path.exists():
            raise SettingsError(f"{place}: {split} = '{path}' does not exist.{home_hint(path)} Check the path.")
    shared = options.keys() - entry.options.keys()
    settings, files = resolve_data(settings, files, task=entry.kind, dataset=entry.dataset, shared=shared)
    if "steps" in shared and settings.epochs is not None:
        console().print(
            f"{place}: {counted(settings.epochs, 'pass', 'passes')} over the training file of {entry.dataset}, as the "
            f"paper's runs; grid.steps = {options['steps']} is for the other tasks. For another number, set steps in "
            "this task."
        )
    if settings.threads is None and not torch.cuda.is_available():
        settings = settings.model_copy(update={"threads": torch.get_num_threads()})
    try:
        reader = family(settings)
    except SettingsError as error:
        raise SettingsError(f"{place}: {error}") from None
    hashes = {split.value: _hash_files(reader.files_of(split, path), path) for split, path in files.items()}
    return ResolvedTask(entry, settings, files, hashes)


def _hash_files(files: list[Path], given: Path) -> dict[str, str]:
    """SHA-256 by name: below a folder that was given, else of the file."""
    root = given if given.is_dir() else given.parent
    return {
        file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name: hash_file(file) for file in files
    }


def _resolve_model(entry: ModelEntry, exports: Path) -> ResolvedModel:
    if needs_export(entry.path):
        checkpoint = open_checkpoint(entry.path).path
        digest = hash_file(checkpoint / MANIFEST_NAME)
        place = EncoderPlace(str(exports / f"{entry.name}-{digest[:16]}"), str(checkpoint))
        return ResolvedModel(entry, place, {MANIFEST_NAME: digest})
    folder = Path(entry.path)
    if folder.is_dir():
        files = (file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith("."))
        contents = {file.name: hash_file(file) for file in files if file.suffix != ".md"}
        return ResolvedModel(entry, EncoderPlace(entry.path), contents)
    with model_loading(entry.path):
        commit = AutoConfig.from_pretrained(entry.path, trust_remote_code=False)._commit_hash
    return ResolvedModel(entry, EncoderPlace(entry.path), {"commit": str(commit)})
