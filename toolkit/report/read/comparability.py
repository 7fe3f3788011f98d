"""Comparability of cells of several grids: one name has to mean the same weights, or the same test data, in all."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.experiments.grid.cell_folder import Record, record_differences
from toolkit.experiments.grid.cells import Score
from toolkit.experiments.grid.folder import GridFolder

# What makes cells of one table differ.
_OF_A_CELL = ("learning_rate", "seed", "threads")


def check_comparable(cells: Mapping[GridFolder, Iterable[Score]]) -> None:
    """Compare what cells of different grids were declared to be, as far as their folders are there.

    Other weights of a model, or other test data of a task, are an error; other settings of a task are told, since a
    table says nothing of them.
    """
    models: dict[str, dict[Path, Record]] = {}
    tasks: dict[str, dict[Path, Record]] = {}
    for grid, score in ((grid, score) for grid, scores in cells.items() for score in scores):
        if grid.path in models.get(score.model, {}) and grid.path in tasks.get(score.task, {}):
            continue
        if (declared := grid.place(score.cell).declared) is not None:
            models.setdefault(score.model, {}).setdefault(grid.path, declared)
            tasks.setdefault(score.task, {}).setdefault(grid.path, declared)
    for name, grids in models.items():
        _check_equal(
            f"the model {name!r} has other weights", {grid: _of(record, "model") for grid, record in grids.items()}
        )
    for name, grids in tasks.items():
        tests = {grid: sorted(map(str, _of(_of(record, "data"), "test").values())) for grid, record in grids.items()}
        _check_equal(f"the task {name!r} has other test data", tests)
        _tell_settings(name, {grid: _of(record, "settings") for grid, record in grids.items()})


def _of(record: Record, key: str) -> Mapping[str, Any]:
    found = record.get(key)
    return found if isinstance(found, dict) else {}


def _check_equal(what: str, by_grid: Mapping[Path, object]) -> None:
    (first, expected), *others = by_grid.items()
    for grid, found in others:
        if found != expected:
            raise UserError(
                f"{what} in {grid} than in {first}. Rename it in one of the grid files: scores under one name are "
                "taken for scores of one thing."
            )


def _tell_settings(task: str, by_grid: Mapping[Path, Mapping[str, Any]]) -> None:
    (first, was), *others = [
        (grid, {key: value for key, value in settings.items() if key not in _OF_A_CELL})
        for grid, settings in by_grid.items()
    ]
    for grid, now in others:
        if found := record_differences(was, now):
            console().print(f"the task {task!r} was trained otherwise in {grid} than in {first}: {'; '.join(found)}")
