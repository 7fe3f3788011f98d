"""Worker of a grid: it prepares a model and a task once, and runs their cells one after another."""

import gc
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from toolkit.core.errors import NonFiniteError, UserError
from toolkit.core.locks import locked_folder
from toolkit.engine.precision import Precision
from toolkit.execution.work import Work
from toolkit.experiments.grid.cell_folder import CellFolder
from toolkit.experiments.grid.inputs import ResolvedModel, ResolvedTask
from toolkit.finetuning import Keep, PreparedTask, Split, get_task, prepare, run_cell
from toolkit.finetuning.bad_rows import CheckedData
from toolkit.finetuning.precision import cpu_autocast, made_by

_SECONDS_TO_END = 120.0
"""Time in which another writer of a cell has to end; the lease of a lock on NFS is 90 s."""


@dataclass(frozen=True)
class CellTask:
    """Everything that running a cell takes."""

    folder: CellFolder
    task: ResolvedTask
    """Its settings have the seed and the learning rate of the cell."""
    model: ResolvedModel
    keep: Keep
    lock: Path
    """Locked while the cell runs; cells of one training have the same."""
    training: Path | None
    """Folder of trained weights that other cells answer with too; None where no other cell does."""
    groups: frozenset[tuple[str, str]]
    """Model and task of all cells of this training."""
    cpu_precision: Precision | None
    """Compute dtype on a CPU, where the command has measured it."""

    @property
    def record(self) -> dict[str, Any]:
        """Identity of the cell: its result is that of another one where this differs."""
        return {
            "kind": self.task.entry.kind,
            "settings": self.task.settings.model_dump(mode="json"),
            "model": self.model.contents,
            "data": self.task.hashes,
        }


class CellRunner:
    """Runs cells in this process. What depends on model and task alone is kept until other ones come."""

    def __init__(self) -> None:
        self._prepared: dict[tuple[str, str], PreparedTask | UserError] = {}

    def __call__(self, work: Work) -> None:
        """Run a cell as `toolkit finetune` does; that its training diverged is written down."""
        with _only_writer(work.payload), cpu_autocast(work.payload.cpu_precision):
            self._run(work.payload)

    def _run(self, cell: CellTask) -> None:
        cell.folder.begin(cell.record)
        prepared, settings = self._prepare(cell), cell.task.settings
        family: Any = type(prepared.task)
        prepared = replace(prepared, task=family(settings))
        try:
            run_cell(
                prepared, cell.folder.path, model_name=cell.model.entry.path, keep=cell.keep, training=cell.training
            )
        except NonFiniteError as error:
            cell.folder.diverge(str(error), made_by=made_by(settings.threads or torch.get_num_threads()))
        gc.collect()

    def _prepare(self, cell: CellTask) -> PreparedTask:
        group = cell.folder.cell.group
        if group not in self._prepared:
            self._prepared = {other: prepared for other, prepared in self._prepared.items() if other in cell.groups}
            gc.collect()
            try:
                self._prepared[group] = _prepare(cell.task, cell.model)
            except UserError as error:
                self._prepared[group] = error
        prepared = self._prepared[group]
        if isinstance(prepared, UserError):
            raise prepared
        return prepared


def _only_writer(cell: CellTask) -> AbstractContextManager[None]:
    """Wait until no other process writes the cell: one of a killed command, or on a machine that was given up."""
    return locked_folder(
        cell.lock.parent,
        cell.lock.name,
        timeout=_SECONDS_TO_END,
        in_use=(
            f"a worker of an earlier command still writes {cell.folder.path}: it holds {cell.lock}. Stop it, and run "
            "the same command again."
        ),
        unwritable=lambda reason: f"could not lock {cell.lock}: {reason}. Set grid.dir to a folder that can be locked.",
    )


def _prepare(task: ResolvedTask, model: ResolvedModel) -> PreparedTask:
    family = get_task(task.entry.kind)(task.settings)
    data = family.read(task.files)
    if isinstance(data, CheckedData) and not data.is_scored:
        raise UserError(
            f"no row of {task.files[Split.TEST]} has a label, and a grid compares scores. Give a test file with labels."
        )
    source = model.open(max_length=task.settings.max_length, attention=family.attention)
    return prepare(family, task.files, data, source, dataset_name=task.entry.dataset)
