"""The files of a grid folder, read: results.jsonl, selected.json and grid.toml."""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.core.text import json_kind
from toolkit.experiments.cells import Cell

RESULTS_FILE, SELECTED_FILE, GRID_FILE = "results.jsonl", "selected.json", "grid.toml"
_AGAIN = "Run `toolkit grid` again: it writes the file from the cells that have finished."
_TEXTS = ("model", "task", "kind", "metric")
_KINDS: dict[str, Any] = {**dict.fromkeys(_TEXTS, str), "seed": int, "learning_rate": (int, float)}
_EXPECTED = {str: "a string", int: "an integer", (int, float): "a number"}
_DIVERGED = "Runs that diverged (cells/*/*/*/*/diverged.json) have no score: give smaller learning_rates."
Label = str | int | float | bool
Labels = Mapping[str, Label]


@dataclass(frozen=True)
class CellScores:
    """A finished cell: scores by metric name, and its folder, which need not exist.

    `majority` is the main metric of the best answer that reads no text, `made_by` versions and device; None if unknown.
    """

    model: str
    task: str
    kind: str
    seed: int
    learning_rate: float
    metric: str
    validation: Mapping[str, float]
    test: Mapping[str, float]
    folder: Path
    majority: float | None = None
    made_by: Mapping[str, str] | None = None

    @property
    def score(self) -> float:
        """The main metric on the test split."""
        return self.test[self.metric]

    @property
    def cell(self) -> Cell:
        """Which cell it is."""
        return Cell(self.model, self.task, self.kind, self.seed, self.learning_rate)


@dataclass(frozen=True)
class ModelInfo:
    """A model of the grids: where its weights were, and its labels; both may be unknown."""

    name: str
    path: str | None = None
    labels: Labels | None = None


@dataclass(frozen=True)
class Declaration:
    """A grid file: its text, models, names of tasks and cells; nothing where a folder has none."""

    text: str | None = None
    models: tuple[ModelInfo, ...] = ()
    tasks: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    """All that are declared, rates and seeds ascending."""
    is_halving: bool = False
    """Whether rates that do badly get no further seeds."""


def is_grid(folder: Path) -> bool:
    """Whether this is the folder of a grid."""
    return (folder / RESULTS_FILE).is_file() or (folder / SELECTED_FILE).is_file() or (folder / GRID_FILE).is_file()


def read_cells(folder: Path) -> list[CellScores]:
    """The finished cells, in the file's order.

    Raises:
        UserError: results.jsonl is missing, damaged or empty, or has a cell twice.
    """
    path = folder / RESULTS_FILE
    text = _read_text(path)
    cells = [_cell(path, number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not cells:
        raise UserError(f"{path} has no finished cell, so there is nothing to report. {_AGAIN} {_DIVERGED}")
    seen: dict[tuple[object, ...], int] = {}
    for number, cell in enumerate(cells, start=1):
        key = (cell.model, cell.task, cell.learning_rate, cell.seed)
        if key in seen:
            raise UserError(
                f"{path}: rows {seen[key]} and {number} are of the same cell (model {cell.model!r}, task "
                f"{cell.task!r}, learning rate {cell.learning_rate!r}, seed {cell.seed}). {_AGAIN}"
            )
        seen[key] = number
    return cells


def _cell(path: Path, number: int, line: str) -> CellScores:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise _broken(path, number, f"is not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise _broken(path, number, f"is {json_kind(row)}, expected an object")
    for key, kind in _KINDS.items():
        if key not in row:
            raise _broken(path, number, f"has no {key!r}")
        if not isinstance(row[key], kind) or isinstance(row[key], bool):
            raise _broken(path, number, f"has {key} = {json.dumps(row[key])}, expected {_EXPECTED[kind]}")
    if not (math.isfinite(row["learning_rate"]) and row["learning_rate"] > 0):
        raise _broken(path, number, f"has learning_rate = {row['learning_rate']}, expected a value above 0")
    test, validation = _scores(path, number, row, "test"), _scores(path, number, row, "validation")
    if row["metric"] not in test:
        raise _broken(path, number, f"has no test score of its metric {row['metric']!r}")
    cell = Cell(row["model"], row["task"], row["kind"], row["seed"], float(row["learning_rate"]))
    return CellScores(
        **cell._asdict(),
        metric=row["metric"],
        validation=validation,
        test=test,
        folder=cell_folder(path.parent, cell),
        majority=_majority(path, number, row),
        made_by=row["made_by"] if isinstance(row.get("made_by"), dict) else None,
    )


def cell_folder(grid: Path, cell: Cell) -> Path:
    """Where a cell of a grid keeps its files."""
    return grid / "cells" / cell.path


def _majority(path: Path, number: int, row: Mapping[str, Any]) -> float | None:
    """None too where an older version wrote the row."""
    if row.get("majority") is None:
        return None
    metric = row["metric"]
    return _scores(path, number, {"majority": {metric: row["majority"]}}, "majority")[metric]


def _scores(path: Path, number: int, row: Mapping[str, Any], split: str) -> dict[str, float]:
    scores = row.get(split)
    if scores is None and split == "validation":
        return {}
    if not isinstance(scores, dict):
        raise _broken(path, number, f"has {split} = {json.dumps(scores)}, expected an object of scores")
    for name, score in scores.items():
        if not isinstance(score, int | float) or isinstance(score, bool) or not math.isfinite(score):
            raise _broken(path, number, f"has {split}.{name} = {json.dumps(score)}, expected a finite number")
    return {name: float(score) for name, score in scores.items()}


def _broken(path: Path, number: int, what: str) -> UserError:
    return UserError(f"{path}: row {number} {what}. {_AGAIN}")


def read_rates(folder: Path, cells: Iterable[CellScores]) -> dict[tuple[str, str], float]:
    """The chosen learning rate of each (model, task).

    Raises:
        UserError: selected.json is missing, damaged or empty, or names a rate that has no cell.
    """
    path = folder / SELECTED_FILE
    text = _read_text(path)
    available = {(cell.model, cell.task, cell.learning_rate) for cell in cells}
    rates: dict[tuple[str, str], float] = {}
    try:
        for model, tasks in json.loads(text).items():
            for task, entry in tasks.items():
                rates[model, task] = float(entry["learning_rate"])
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}). {_AGAIN}") from None
    for (model, task), rate in rates.items():
        if (model, task, rate) not in available:
            raise UserError(
                f"{path} has learning rate {rate!r} for the model {model!r} and the task {task!r}, of which "
                f"{RESULTS_FILE} has no cell. {_AGAIN}"
            )
    if not rates:
        raise UserError(
            f"{path} has no model and task whose learning rate could be chosen: no score to report. {_AGAIN} "
            f"{_DIVERGED}"
        )
    return rates


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: the grid has not finished. {_AGAIN}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid UTF-8 (byte {error.start}). {_AGAIN}") from None
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror}. Make it readable.") from error


def read_declaration(folder: Path) -> Declaration:
    """What the grid file declares.

    Raises:
        UserError: grid.toml is damaged.
    """
    path = folder / GRID_FILE
    if not path.is_file():
        return Declaration()
    text = _read_text(path)
    try:
        content = tomllib.loads(text)
        shared, tasks = content.get("grid", {}), content.get("task", [])
        started_in = _working_directory(folder, shared.get("dir"))
        models = [
            ModelInfo(entry["name"], _seen_from_here(entry.get("path"), started_in), _labels(entry.get("labels", {})))
            for entry in content.get("model", [])
        ]
        return Declaration(
            text=text,
            models=tuple(models),
            tasks=tuple(task["name"] for task in tasks),
            cells=tuple(cell for model in models for task in tasks for cell in _declared_cells(model, task, shared)),
            is_halving=shared.get("search") == "halving",
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error}). {_AGAIN}") from None


def _declared_cells(model: ModelInfo, task: Mapping[str, Any], shared: Mapping[str, Any]) -> list[Cell]:
    """Of a model and a task; `toolkit grid` writes its defaults into the file, so that rates and seeds are there."""
    rates, seeds = ({**shared, **task}.get(key, ()) for key in ("learning_rates", "seeds"))
    return [
        Cell(model.name, task["name"], task["kind"], seed, rate)
        for rate in sorted(map(float, rates))
        for seed in sorted(seeds)
    ]


def _working_directory(folder: Path, declared: str | None) -> Path | None:
    """Where the grid's command was started, from the grid's folder and the name that it had there."""
    parts, own = () if declared is None else Path(declared).parts, folder.resolve()
    if not parts or Path(*parts).is_absolute() or own.parts[-len(parts) :] != parts:
        return None
    return own.parents[len(parts) - 1]


def _seen_from_here(path: str | None, started_in: Path | None) -> str | None:
    """A model's path; a relative one that is not below our working directory is looked for below the grid's."""
    if path is None or started_in is None or Path(path).exists() or not (started_in / path).exists():
        return path
    return str(started_in / path)


def _labels(raw: Mapping[str, Any]) -> dict[str, Label]:
    wrong = [key for key, value in raw.items() if not isinstance(value, str | int | float)]
    if wrong:
        raise TypeError(f"the label {wrong[0]!r} is {json_kind(raw[wrong[0]])}, expected a string or a number")
    return dict(raw)
