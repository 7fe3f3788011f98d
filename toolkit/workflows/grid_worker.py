"""What a worker of a grid does: it prepares a model and a task once, and runs their cells one after another."""

import gc
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from toolkit.core.errors import NonFiniteError, UserError
from toolkit.core.locks import locked_file, locked_folder
from toolkit.engine.precision import Precision
from toolkit.execution import Work
from toolkit.experiments.grid.cell_folder import CellFolder, Record
from toolkit.experiments.grid.cells import Cell
from toolkit.finetuning import FinetuningSettings, Keep, PreparedTask, Split, get_task, open_source, prepare, run_cell
from toolkit.finetuning.made_by import made_by
from toolkit.finetuning.precision import cpu_autocast
from toolkit.workflows.finetune import export_encoder

_SECONDS_TO_END = 120.0
"""How long another writer of a cell may take to end; the lease of a lock on NFS is 90 s."""


@dataclass(frozen=True)
class EncoderPlace:
    """Where a model's encoder is: a folder or hub id, exported from a checkpoint by the first worker that needs it."""

    path: str
    checkpoint: str | None = None

    def ready(self) -> str:
        """The folder or hub id.

        Raises:
            UserError: the checkpoint cannot be exported.
        """
        if self.checkpoint is not None:
            folder = Path(self.path)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locked_file(folder.with_name(f".{folder.name}.lock")):
                if not folder.is_dir():
                    export_encoder(self.checkpoint, folder)
        return self.path


@dataclass(frozen=True)
class CellTask:
    """What a cell runs.

    Attributes:
        settings: of its kind, with seed and learning rate.
        files: of the splits.
        dataset: name of a data set on the hub, if it is one.
        model: as the grid names its path; in `result.json`.
        encoder: of the model.
        output: folder of the cell.
        record: what the cell is, to be kept beside its result.
        keep: whether the model is kept.
        lock: file that is locked while the cell runs; cells of one training have the same.
        training: folder of trained weights that other cells answer with too; None where no other cell does.
        groups: model and task of all cells of this training.
        cpu_precision: compute dtype on a CPU, where the command has measured it.
    """

    settings: FinetuningSettings
    files: dict[Split, Path]
    dataset: str | None
    model: str
    encoder: EncoderPlace
    output: Path
    record: Record
    keep: Keep
    lock: Path
    training: Path | None
    groups: frozenset[tuple[str, str]]
    cpu_precision: Precision | None


class CellRunner:
    """Runs cells in this process. What depends on model and task alone is kept until other ones come."""

    def __init__(self) -> None:
        self._prepared: dict[tuple[str, str], PreparedTask | UserError] = {}

    def __call__(self, work: Work) -> None:
        """Run a cell as `toolkit finetune` does; that its training diverged is written down.

        Raises:
            UserError: a file or the model does not fit, or the folder cannot be written.
        """
        with _only_writer(work.payload), cpu_autocast(work.payload.cpu_precision):
            self._run(work.key, work.payload)

    def _run(self, of: Cell, task: CellTask) -> None:
        folder = CellFolder(task.output, of)
        folder.begin(task.record)
        prepared = self._prepare(of, task)
        family: Any = type(prepared.task)
        cell = replace(prepared, task=family(task.settings))
        try:
            run_cell(cell, task.output, model_name=task.model, keep=task.keep, training=task.training)
        except NonFiniteError as error:
            folder.diverge(str(error), made_by=made_by(task.settings.threads or torch.get_num_threads()))
        gc.collect()

    def _prepare(self, of: Cell, task: CellTask) -> PreparedTask:
        group, kept = of.group, task.groups
        if group not in self._prepared:
            self._prepared = {other: prepared for other, prepared in self._prepared.items() if other in kept}
            gc.collect()
            try:
                self._prepared[group] = _prepare(of.kind, task)
            except UserError as error:
                self._prepared[group] = error
        prepared = self._prepared[group]
        if isinstance(prepared, UserError):
            raise prepared
        return prepared


def _only_writer(task: CellTask) -> AbstractContextManager[None]:
    """Wait until no other process writes the cell: one of a killed command, or on a machine that was given up."""
    return locked_folder(
        task.lock.parent,
        task.lock.name,
        timeout=_SECONDS_TO_END,
        in_use=(
            f"a worker of an earlier command still writes {task.output}: it holds {task.lock}. Stop it, and run the "
            "same command again."
        ),
        unwritable=lambda reason: f"could not lock {task.lock}: {reason}. Set grid.dir to a folder that can be locked.",
    )


def _prepare(kind: str, task: CellTask) -> PreparedTask:
    chosen = get_task(kind)(task.settings)
    data = chosen.read(task.files)
    encoder = task.encoder
    origin = None if encoder.checkpoint is None else Path(encoder.checkpoint)
    source = open_source(encoder.ready(), max_length=task.settings.max_length, origin=origin)
    return prepare(chosen, task.files, data, source, dataset_name=task.dataset)
