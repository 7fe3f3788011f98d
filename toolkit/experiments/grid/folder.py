"""A grid's folder: the paths of its files, writing them, and reading them for a report."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.core.files import atomic_write
from toolkit.core.text import json_kind
from toolkit.experiments.grid.cell_folder import CellFolder
from toolkit.experiments.grid.cells import Cell, Score
from toolkit.experiments.grid.declaration import UNTRAINED_CELL, Label, Labels, ReportSettings, trains
from toolkit.experiments.grid.selection import Selected, select

_AGAIN = "Run `toolkit grid` again: it writes the file from the cells that have finished."
_DIVERGED = "Runs that diverged (cells/*/*/*/*/diverged.json) have no score: give smaller learning_rates."


@dataclass(frozen=True)
class ModelInfo:
    """A model of a grid: the path where its weights were, and its labels; both may be unknown."""

    name: str
    path: str | None = None
    labels: Labels | None = None


@dataclass(frozen=True)
class Declaration:
    """The kept copy of a grid file: its text, models, task names and cells; empty if the folder has none."""

    text: str | None = None
    models: tuple[ModelInfo, ...] = ()
    tasks: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    """All declared cells, rates and seeds ascending."""
    report: ReportSettings = field(default_factory=ReportSettings)


class GridFolder:
    """The files of one grid."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.declaration_file = self.path / "grid.toml"
        self.results_file = self.path / "results.jsonl"
        self.selected_file = self.path / "selected.json"
        self.cells = self.path / "cells"
        self.logs = self.path / "workers"
        # Needed only while the grid runs: encoders of checkpoints, and trained weights shared by several cells.
        self.exports = self.path / ".encoders"
        self.trainings = self.path / ".trainings"
        self.jobs_file = self.path / "jobs.json"

    def __str__(self) -> str:
        return str(self.path)

    def is_grid(self) -> bool:
        """True if a grid has written to this folder."""
        return any(file.is_file() for file in (self.results_file, self.selected_file, self.declaration_file))

    def place(self, cell: Cell) -> CellFolder:
        """The folder of a cell."""
        return CellFolder(self.cells / cell.path, cell)

    def write_results(self, scores: Iterable[Score], selected: Selected) -> None:
        """Write selected.json, and results.jsonl sorted by cell."""
        atomic_write(self.selected_file, json.dumps(selected, indent=2, ensure_ascii=False) + "\n")
        lines = [score.line() for score in sorted(scores, key=lambda score: score.cell)]
        atomic_write(self.results_file, "".join(lines))

    def append(self, score: Score) -> None:
        """Add a line to results.jsonl, unless a command started after the worker finished the cell has written it."""
        with self.results_file.open("a+", encoding="utf-8") as file:
            file.seek(0)
            if (line := score.line()) not in file.readlines():
                file.write(line)

    def read_scores(self) -> list[Score]:
        """Scores of the finished cells, in file order."""
        path = self.results_file
        # Not splitlines(): names may contain U+0085 and U+2028.
        lines = enumerate(_read_text(path).split("\n"), start=1)
        scores = [self._score(number, line) for number, line in lines if line.strip()]
        if not scores:
            raise UserError(f"{path} has no finished cell, so there is nothing to report. {_AGAIN} {_DIVERGED}")
        seen: dict[tuple[object, ...], int] = {}
        for number, score in enumerate(scores, start=1):
            key = (score.model, score.task, score.learning_rate, score.seed)
            if key in seen:
                raise UserError(
                    f"{path}: rows {seen[key]} and {number} are of the same cell (model {score.model!r}, task "
                    f"{score.task!r}, learning rate {score.learning_rate!r}, seed {score.seed}). {_AGAIN}"
                )
            seen[key] = number
        return scores

    def _score(self, number: int, line: str) -> Score:
        try:
            return Score.read(json.loads(line))
        except json.JSONDecodeError as error:
            what = f"is not valid JSON ({error})"
        except ValueError as error:
            what = str(error)
        raise UserError(f"{self.results_file}: row {number} {what}. {_AGAIN}")

    def read_rates(self, scores: Sequence[Score], cells: Iterable[Cell] = ()) -> dict[tuple[str, str], float]:
        """Chosen learning rate of each (model, task); for declared `cells`, based on those finished by now."""
        path = self.selected_file
        text = _read_text(path)
        available = {(score.model, score.task, score.learning_rate) for score in scores}
        try:
            rates = {
                (model, task): float(entry["learning_rate"])
                for model, tasks in json.loads(text).items()
                for task, entry in tasks.items()
            }
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({type(error).__name__}: {error}). {_AGAIN}") from None
        for (model, task), rate in rates.items():
            if (model, task, rate) not in available:
                raise UserError(
                    f"{path} has learning rate {rate!r} for the model {model!r} and the task {task!r}, of which "
                    f"{self.results_file.name} has no cell. {_AGAIN}"
                )
        # A running command writes the file only at its start and end.
        for model, tasks in select(cells, scores).items():
            rates |= {(model, task): entry["learning_rate"] for task, entry in tasks.items()}
        if not rates:
            raise UserError(
                f"{path} has no model and task whose learning rate could be chosen: no score to report. {_AGAIN} "
                f"{_DIVERGED}"
            )
        return rates

    def read_declaration(self) -> Declaration:
        """Declaration in the kept grid file; one of an older version may lack keys that `load_grid` requires."""
        if not self.declaration_file.is_file():
            return Declaration()
        text = _read_text(self.declaration_file)
        try:
            content = tomllib.loads(text)
            shared = content.get("grid", {})
            tasks = [
                {**shared, **task, **({} if trains(task["kind"], task) else UNTRAINED_CELL)}
                for task in content.get("task", [])
            ]
            models = [self._model(entry, shared.get("dir")) for entry in content.get("model", [])]
            return Declaration(
                report=ReportSettings.model_validate(content.get("report", {})),
                text=text,
                models=tuple(models),
                tasks=tuple(task["name"] for task in tasks),
                cells=tuple(
                    Cell(model.name, task["name"], task["kind"], seed, rate)
                    for model in models
                    for task in tasks
                    for rate in sorted(map(float, task.get("learning_rates", ())))
                    for seed in sorted(task.get("seeds", ()))
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{self.declaration_file} is damaged ({error}). {_AGAIN}") from None

    def _model(self, entry: Mapping[str, Any], declared_dir: str | None) -> ModelInfo:
        """A model; a relative path not found in our working directory is looked up in the grid's."""
        path, started_in = entry.get("path"), self._working_directory(declared_dir)
        if path is not None and started_in is not None and not Path(path).exists() and (started_in / path).exists():
            path = str(started_in / path)
        return ModelInfo(entry["name"], path, _labels(entry.get("labels", {})))

    def _working_directory(self, declared_dir: str | None) -> Path | None:
        """Working directory of the grid's command, from the folder's path now and as declared."""
        parts, own = () if declared_dir is None else Path(declared_dir).parts, self.path.resolve()
        if not parts or Path(*parts).is_absolute() or own.parts[-len(parts) :] != parts:
            return None
        return own.parents[len(parts) - 1]


def _labels(raw: Mapping[str, Any]) -> dict[str, Label]:
    for key, value in raw.items():
        if not isinstance(value, str | int | float):
            raise TypeError(f"the label {key!r} is {json_kind(value)}, expected a string or a number")
    return dict(raw)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: the grid has not finished. {_AGAIN}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid UTF-8 (byte {error.start}). {_AGAIN}") from None
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror}. Make it readable.") from error
