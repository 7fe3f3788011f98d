"""A resolved grid: its cells, the outcomes of those that have finished, and the job for workers."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from toolkit.core.cache import KnownHashes
from toolkit.core.errors import SettingsError
from toolkit.core.settings import validated
from toolkit.core.text import counted, first_few
from toolkit.engine.precision import Precision
from toolkit.experiments.encoders import check_model
from toolkit.experiments.grid.cells import Cell, Outcome, grid_cells
from toolkit.experiments.grid.declaration import Grid
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.grid.inputs import HubAccess, resolve_models, resolve_task
from toolkit.experiments.grid.workers import CellTask, GridJob
from toolkit.finetuning import FinetuningSettings, Keep, Task, get_task
from toolkit.finetuning.precision import choose_autocast

_MOST_SHOWN = 8


class GridPlan:
    """A grid with everything that its cells need, and one model per checkpoint that an entry's `steps` found."""

    def __init__(self, grid: Grid, *, hub: HubAccess = HubAccess.FETCHED) -> None:
        self.folder, self._hub = GridFolder(grid.grid.dir), hub
        self._cpu_precisions: dict[int, Precision] = {}
        known = KnownHashes()
        self._tasks = {
            entry.name: resolve_task(entry, grid.options(entry), num_rates=len(grid.rates(entry)), hub=hub, known=known)
            for entry in grid.task
        }
        resolved = [
            [] if entry.is_random else resolve_models(entry, self.folder.exports, hub=hub, known=known)
            for entry in grid.model
        ]
        shapes = [model for own in resolved for model in own]
        models = [
            model for entry, own in zip(grid.model, resolved, strict=True) for model in own or [shapes[0].twin(entry)]
        ]
        entries = tuple(model.entry for model in models)
        if entries != grid.model:
            grid = validated(Grid, {**dict(grid), "model": entries})
        self.grid = grid
        self._models = {model.entry.name: model for model in models}
        self.cells = grid_cells(self.grid)
        if hub is HubAccess.FETCHED:
            # A dry run writes nothing.
            known.save()

    @property
    def unfetched(self) -> list[str]:
        """Data sets and models to fetch from the hub before cells can run."""
        sets = {f"data set {task.entry.dataset}" for task in self._tasks.values() if task.hashes is None}
        models = {f"model {model.source}" for model in self._models.values() if model.contents is None}
        return [*sorted(sets), *sorted(models)]

    def choose_precisions(self) -> None:
        """Measure here which dtype cells use on a CPU; workers would measure concurrently, or choose differently."""
        found = {threads for cell in self.cells if (threads := self._settings(cell).threads) is not None}
        self._cpu_precisions = {threads: choose_autocast(threads) for threads in sorted(found)}

    def job(self, cells: Iterable[Cell]) -> GridJob:
        """Job of these cells for workers; call `choose_precisions` first."""
        return GridJob(self.folder, [(self.trainings[cell], self.task(cell)) for cell in cells])

    def task(self, cell: Cell) -> CellTask:
        """Everything needed to run a cell."""
        settings, training = self._settings(cell), self.trainings[cell]
        alike = self.cells_by_training[training]
        return CellTask(
            cell=cell,
            task=replace(self._tasks[cell.task], settings=settings),
            model=self._models[cell.model],
            keep=Keep.SCORES if self.grid.grid.keep_models == "none" or not cell.learning_rate else Keep.MODEL,
            training=self.folder.trainings / training if len(alike) > 1 else None,
            groups=frozenset(other.group for other in alike),
            cpu_precision=None if settings.threads is None else self._cpu_precisions.get(settings.threads),
        )

    @cached_property
    def cells_by_training(self) -> dict[str, list[Cell]]:
        """All cells by the name of their training; cells of one training differ only in evaluation data."""
        alike: dict[str, list[Cell]] = {}
        for cell in self.cells:
            settings, data = self._settings(cell).model_dump(mode="json"), self._tasks[cell.task].training_data
            alike.setdefault(json.dumps([cell.model, cell.kind, settings, data]), []).append(cell)
        return {cells[0].path: cells for cells in alike.values()}

    @cached_property
    def trainings(self) -> dict[Cell, str]:
        """Name of each cell's training: the path of the first cell with the same model, settings and training data."""
        return {cell: name for name, cells in self.cells_by_training.items() for cell in cells}

    def outcome(self, cell: Cell) -> Outcome | None:
        """Outcome of a cell; None if it is to be run, such as one that diverged with another declaration."""
        place = self.folder.place(cell)
        if (score := place.score) is not None:
            return score
        diverged = place.diverged
        return None if diverged is None or self._changes(cell) else diverged

    def finished(self) -> dict[Cell, Outcome]:
        """Outcomes of the finished cells; raise `SettingsError` if one had another declaration or other data."""
        outcomes = {cell: outcome for cell in self.cells if (outcome := self.outcome(cell)) is not None}
        if changed := {cell: found for cell in outcomes if (found := self._changes(cell))}:
            raise SettingsError(self._refusal(changed))
        return outcomes

    def check_models(self, cells: Iterable[Cell]) -> None:
        """Validate the models of these cells before the first of them runs."""
        tasks: dict[str, dict[str, Task[Any]]] = {}
        for cell in cells:
            tasks.setdefault(cell.model, {})[cell.kind] = get_task(cell.kind)(self._tasks[cell.task].settings)
        for name, own in tasks.items():
            model = self._models[name]
            if self._hub is HubAccess.FETCHED or Path(model.source).exists():
                check_model(model.source, own.values(), initialization=model.initialization)

    def _changes(self, cell: Cell) -> list[str]:
        was = self.folder.place(cell).declared
        if was is None:
            return ["it has no declared.json, so a grid did not run it"]
        return self.task(cell).differences(was)

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
                f"{self.folder.cells} to run them again.",
            ]
        )

    def _settings(self, cell: Cell) -> FinetuningSettings:
        own = {"seed": cell.seed, "learning_rate": cell.learning_rate}
        return self._tasks[cell.task].settings.model_copy(update=own)
