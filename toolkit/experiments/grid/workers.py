"""Workers of a grid: the inputs of a cell, how it is run, and where workers are started."""

import gc
import os
import shlex
import shutil
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from toolkit.core.console import console
from toolkit.core.errors import NonFiniteError, UserError
from toolkit.core.text import counted
from toolkit.engine import gpus
from toolkit.engine.precision import Precision
from toolkit.experiments.grid.cell_folder import CellFolder, Record, record_differences
from toolkit.experiments.grid.cells import Cell
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.grid.inputs import ResolvedModel, ResolvedTask
from toolkit.finetuning import Keep, PreparedTask, Split, get_task, prepare, run_cell
from toolkit.finetuning.bad_rows import CheckedData
from toolkit.finetuning.precision import cpu_autocast, made_by
from toolkit.work.claims import Item, Job
from toolkit.work.commands import Command, command_name
from toolkit.work.ray import Cluster, OnRay, Resources
from toolkit.work.slurm import SlurmJobs, SlurmSettings
from toolkit.work.start import Crew, ExecutorKind, Here


@dataclass(frozen=True)
class CellTask:
    """Everything needed to run a cell."""

    cell: Cell
    task: ResolvedTask
    """Its settings include the cell's seed and learning rate."""
    model: ResolvedModel
    keep: Keep
    training: Path | None
    """Folder of trained weights shared with other cells; None if no other cell uses them."""
    groups: frozenset[tuple[str, str]]
    """(model, task) of all cells that share this training."""
    cpu_precision: Precision | None
    """Compute dtype on a CPU; None if the command has not measured it."""

    @property
    def record(self) -> dict[str, Any]:
        """Identity of the cell: a result with a different record is that of another cell."""
        return {
            "kind": self.task.entry.kind,
            "settings": self.task.settings.model_dump(mode="json"),
            "model": self.model.contents,
            "data": self.task.hashes,
        }

    def differences(self, was: Record) -> list[str]:
        """Differences from the record of a finished cell, in words; threads count only if the grid sets them."""
        # A setting added by a later version had its default value.
        before = {**get_task(self.task.entry.kind).Settings().model_dump(mode="json"), **was.get("settings", {})}
        # Inputs that have not been fetched cannot be compared.
        now: dict[str, Any] = {key: was.get(key) if value is None else value for key, value in self.record.items()}
        if self.task.is_threads_open:
            now["settings"] = {**now["settings"], "threads": before["threads"]}
        return record_differences({**was, "settings": before}, now)


class GridJob(Job):
    """Cells to run; a process keeps what depends only on model and task until others come."""

    def __init__(self, folder: GridFolder, tasks: Sequence[tuple[str, CellTask]]) -> None:
        """`tasks` are (training name, task) pairs; one process runs all cells of a training."""
        items = [Item(str(task.cell), task, group=task.cell.group, claim=training) for training, task in tasks]
        super().__init__(grid_command(folder).work, items)
        self._folder = folder
        self._prepared: dict[tuple[str, str], PreparedTask | UserError] = {}

    def is_done(self, item: Item) -> bool:
        """True if a cell has scores, or diverged with its current declaration."""
        place = self._place(item)
        if place.score is not None:
            return True
        was = None if place.diverged is None else place.declared
        return was is not None and not item.payload.differences(was)

    def do(self, item: Item) -> None:
        """Run a cell as `toolkit finetune` does; a divergence is recorded."""
        task, place = item.payload, self._place(item)
        place.begin(task.record)
        with cpu_autocast(task.cpu_precision):
            self._run(task, place)
        if (score := place.score) is not None:
            with grid_command(self._folder).locked():
                self._folder.append(score)
        others = (other for other in self.items if other.claim == item.claim)
        if task.training is not None and all(self.is_done(other) for other in others):
            # No cell needs the weights any more.
            shutil.rmtree(task.training, ignore_errors=True)

    def fail(self, item: Item, message: str) -> None:
        """Write the message to the cell's folder."""
        self._place(item).fail(message)

    def _place(self, item: Item) -> CellFolder:
        return self._folder.place(item.payload.cell)

    def _run(self, cell: CellTask, place: CellFolder) -> None:
        prepared, settings = self._prepare(cell), cell.task.settings
        family: Any = type(prepared.task)
        prepared = replace(prepared, task=family(settings))
        try:
            run_cell(prepared, place.path, model_name=cell.model.entry.path, keep=cell.keep, training=cell.training)
        except NonFiniteError as error:
            place.diverge(str(error), made_by=made_by(settings.threads or torch.get_num_threads()))
        gc.collect()

    def _prepare(self, cell: CellTask) -> PreparedTask:
        group = cell.cell.group
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


def _prepare(task: ResolvedTask, model: ResolvedModel) -> PreparedTask:
    family = get_task(task.entry.kind)(task.settings)
    data = family.read(task.files)
    if isinstance(data, CheckedData) and not data.is_scored:
        raise UserError(
            f"no row of {task.files[Split.TEST]} has a label, and a grid compares scores. Give a test file with labels."
        )
    source = model.open(max_length=task.settings.max_length, attention=family.attention)
    dataset = None if task.entry.train else task.entry.dataset
    return prepare(family, task.files, data, source, dataset_name=dataset)


def grid_command(folder: GridFolder) -> Command:
    """This process as one of the commands that run a grid."""
    return Command(folder.path, name="toolkit grid", what="grid", elsewhere="set grid.dir to another folder")


def open_crew(kind: ExecutorKind, job: GridJob, *, num_workers: int | None, logs: Path) -> Crew:
    """Workers for the cells; `num_workers` defaults to as many as there is room for."""
    threads, logs = max(item.payload.task.settings.threads or 1 for item in job.items), logs / command_name()
    if kind is ExecutorKind.RAY:
        most = min(num_workers or len(job.items), len(job.items))
        return _on_ray(Cluster(), job, threads, most=most, logs=logs)
    places = _places(threads, num_workers, num_items=len(job.items))
    return Here(job, places=places, logs=logs)


def _places(threads: int, num_workers: int | None, *, num_items: int) -> list[dict[str, str]]:
    """Environments of workers on this machine; by default one per GPU, or as many as the cores hold."""
    num_cores, visible = len(os.sched_getaffinity(0)), gpus.visible_gpus()
    chosen = min(num_workers or len(visible) or max(1, num_cores // threads), num_items)
    if visible:
        console().print(f"{counted(chosen, 'worker')} on {counted(min(chosen, len(visible)), 'GPU')}")
        return [{gpus.VISIBLE_DEVICES: visible[worker % len(visible)]} for worker in range(chosen)]
    console().print(f"{counted(chosen, 'worker')} of {counted(threads, 'thread')} on {counted(num_cores, 'core')}")
    return [{}] * chosen


def _on_ray(cluster: Cluster, job: GridJob, threads: int, *, most: int, logs: Path) -> Crew:
    each = Resources(threads, 0 if gpus.is_cpu_wanted() else min(1, cluster.num_gpus))
    at_once, with_gpu = min(cluster.room(each), most), ", each with a GPU" if each.gpus else ""
    console().print(
        f"{cluster.name}, {counted(len(cluster.nodes()), 'machine')}: "
        f"{counted(at_once, 'worker')} of {counted(each.cpus, 'thread')}{with_gpu}"
    )
    return OnRay(
        job,
        cluster=cluster,
        most=most,
        resources=each,
        logs=logs,
        shared="grid.dir, data, models and the working directory",
        cpus_setting="grid.threads",
    )


def submit_commands(folder: GridFolder, settings: SlurmSettings, *, most: int, after: Collection[str] = ()) -> None:
    """Submit Slurm jobs that each run the grid declared in the folder, until `most` of them are in the queue."""
    jobs = SlurmJobs(folder.jobs_file)
    command = shlex.join([sys.executable, "-m", "toolkit.cli", "grid", "--", str(folder.declaration_file)])
    jobs.keep_equal(command, folder.path, folder.path.name, most=most, options=settings.options, after=after)
