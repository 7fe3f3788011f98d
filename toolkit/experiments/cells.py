"""Cells of a grid, and the folder of each: what came out, and what it was declared to be.

A cell has finished where it has a result, or where it is known that its training diverges: a cell is a function of its
declaration, and would diverge again.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.core.errors import UserError
from toolkit.core.files import PARTIAL_FILES, atomic_write
from toolkit.experiments.declaration import Grid

RESULT_FILE = "result.json"
"""Written last: a cell that has it is finished."""
_DECLARED, _DIVERGED, _ERROR = "declared.json", "diverged.json", "error.txt"
Record = Mapping[str, Any]


class Cell(NamedTuple):
    """One fine-tuning run; results are sorted by these fields."""

    model: str
    task: str
    kind: str
    seed: int
    learning_rate: float

    @property
    def group(self) -> tuple[str, str]:
        """What a worker keeps from one cell to the next: model and task."""
        return self.model, self.task

    @property
    def path(self) -> str:
        """Of its folder, below `cells/`."""
        return f"{self.model}/{self.task}/lr-{self.learning_rate!r}/seed-{self.seed}"

    def __str__(self) -> str:
        return f"{self.model} {self.task} lr {self.learning_rate!r} seed {self.seed}"


@dataclass(frozen=True)
class Score:
    """What a finished cell's `result.json` says; scores by metric name.

    Attributes:
        cell: the cell.
        metric: the main one.
        validation: scores on the validation split; None without one.
        test: scores on the test split.
        majority: the main metric of the best answer that reads no text; None where there is none.
        made_by: versions, device and compute dtype; None where an older version has written the result.
    """

    cell: Cell
    metric: str
    validation: Mapping[str, float] | None
    test: Mapping[str, float]
    majority: float | None = None
    made_by: Mapping[str, str] | None = None

    def line(self) -> str:
        """Its line of `results.jsonl`."""
        record = {
            **_fields(self.cell),
            "metric": self.metric,
            "validation": self.validation,
            "test": self.test,
            "majority": self.majority,
            "made_by": self.made_by,
        }
        return json.dumps(record, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Diverged:
    """A cell whose training ended in weights that are not finite; `made_by` as in `Score`."""

    cell: Cell
    message: str
    made_by: Mapping[str, str] | None = None


Outcome = Score | Diverged


def _fields(cell: Cell) -> dict[str, Any]:
    """A cell as the first keys of a record."""
    return {
        "model": cell.model,
        "task": cell.task,
        "kind": cell.kind,
        "seed": cell.seed,
        "learning_rate": cell.learning_rate,
    }


def grid_cells(grid: Grid) -> list[Cell]:
    """All cells, in the order in which a single worker runs them."""
    return [
        Cell(model.name, task.name, task.kind, seed, float(rate))
        for model in grid.model
        for task in grid.task
        for rate in grid.rates(task)
        for seed in grid.seeds(task)
    ]


@dataclass(frozen=True)
class CellFolder:
    """The folder of a cell; it need not exist."""

    path: Path
    cell: Cell

    @cached_property
    def score(self) -> Score | None:
        """Of a finished cell; None where it has not finished.

        Raises:
            UserError: `result.json` is broken.
        """
        file = self.path / RESULT_FILE
        try:
            result = json.loads(file.read_text(encoding="utf-8"))
            score = Score(
                self.cell,
                result["metric"],
                result["validation"],
                result["test"],
                result.get("majority"),
                result.get("made_by"),
            )
            _check_finite(score)
            return score
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} is damaged ({error}). Remove {self.path}: the cell is run again.") from error

    @property
    def diverged(self) -> Diverged | None:
        """Of a cell that has no result, since its training diverged; None of any other."""
        try:
            record = json.loads((self.path / _DIVERGED).read_text(encoding="utf-8"))
            return Diverged(self.cell, str(record["message"]), record.get("made_by"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @property
    def declared(self) -> Record | None:
        """What the cell was when it ran; None if unknown."""
        try:
            record = json.loads((self.path / _DECLARED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    @property
    def model(self) -> Path:
        """Folder of the fine-tuned model, where the grid keeps it."""
        return self.path / "model"

    @property
    def error_file(self) -> Path:
        """Where the message of a failed cell is."""
        return self.path / _ERROR

    @property
    def error(self) -> str | None:
        """The message of a failed cell."""
        try:
            return self.error_file.read_text(encoding="utf-8").rstrip("\n")
        except OSError:
            return None

    def begin(self, record: Record) -> None:
        """Say what the cell is, and remove what a killed or failed attempt left."""
        self.path.mkdir(parents=True, exist_ok=True)
        for left in self.path.glob(PARTIAL_FILES):
            left.unlink(missing_ok=True)
        for former in (_ERROR, _DIVERGED):
            (self.path / former).unlink(missing_ok=True)
        atomic_write(self.path / _DECLARED, json.dumps(record, indent=2, ensure_ascii=False) + "\n")

    def diverge(self, message: str, *, made_by: Mapping[str, str]) -> None:
        """Keep that the training diverged: the outcome of a cell without a result."""
        record = {**_fields(self.cell), "message": message, "made_by": made_by}
        atomic_write(self.path / _DIVERGED, json.dumps(record, indent=2, ensure_ascii=False) + "\n")

    def fail(self, message: str) -> None:
        """Keep the message of an attempt that failed."""
        self.path.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path / _ERROR, message + "\n")


def _check_finite(score: Score) -> None:
    """Raise ValueError unless both splits have the metric, and every score is a finite number."""
    for scores in (score.test,) if score.validation is None else (score.test, score.validation):
        if score.metric not in scores:
            raise ValueError(f"no score of the metric {score.metric!r}")
        for name, value in scores.items():
            if isinstance(value, bool) or not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}, expected a finite number")


def differences(was: Record, now: Record, *, place: str = "") -> list[str]:
    """'settings.steps was 1000 and is 500', for each key of two records that differs; hashes are not shown."""
    found: list[str] = []
    for key in sorted({*was, *now}):
        old, new, name = was.get(key), now.get(key), f"{place}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, place=f"{name}.")
        elif old == new:
            continue
        elif place.startswith(("model.", "data.")):
            found.append(f"{name} {'is new' if old is None else 'is gone' if new is None else 'has another content'}")
        else:
            found.append(f"{name} was {json.dumps(old)} and is {json.dumps(new)}")
    return found
