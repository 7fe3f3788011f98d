"""Folder of a cell: its outcome and its declaration."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.core.files import PARTIAL_FILES, atomic_write
from toolkit.experiments.grid.cells import Cell, Diverged, Score

Record = Mapping[str, Any]


class CellFolder:
    """The files of a cell; the folder need not exist. The result is written last: a cell that has it is finished."""

    def __init__(self, path: Path, cell: Cell) -> None:
        self.path, self.cell = path, cell
        self.result_file, self.predictions_file = path / "result.json", path / "predictions.jsonl"
        self.model, self.error_file = path / "model", path / "error.txt"
        self.declared_file, self.diverged_file = path / "declared.json", path / "diverged.json"

    @property
    def score(self) -> Score | None:
        """Scores of a finished cell; None if it has no result."""
        try:
            return Score.read({**json.loads(self.result_file.read_text(encoding="utf-8")), **self.cell._asdict()})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{self.result_file} is damaged ({error}). Remove {self.path}: the cell is run again."
            ) from error

    @property
    def diverged(self) -> Diverged | None:
        """Outcome of a cell without a result because its training diverged; None for any other."""
        record = _read_object(self.diverged_file) or {}
        return Diverged(self.cell, str(record["message"]), record.get("made_by")) if "message" in record else None

    @property
    def outcome(self) -> Score | Diverged | None:
        """Scores, or else the divergence."""
        return self.score or self.diverged

    @property
    def declared(self) -> Record | None:
        """Identity that the cell had when it ran; None if unknown."""
        return _read_object(self.declared_file)

    @property
    def error(self) -> str | None:
        """Message of a failed cell."""
        try:
            return self.error_file.read_text(encoding="utf-8").rstrip("\n")
        except OSError:
            return None

    def begin(self, record: Record) -> None:
        """Write the cell's identity, and remove leftovers of a killed or failed attempt."""
        self.path.mkdir(parents=True, exist_ok=True)
        for left in (*self.path.glob(PARTIAL_FILES), self.error_file, self.diverged_file):
            left.unlink(missing_ok=True)
        _write_object(self.declared_file, record)

    def diverge(self, message: str, *, made_by: Mapping[str, str]) -> None:
        """Record that the training diverged."""
        _write_object(self.diverged_file, {**self.cell._asdict(), "message": message, "made_by": made_by})

    def fail(self, message: str) -> None:
        """Record the message of a failed attempt."""
        self.path.mkdir(parents=True, exist_ok=True)
        atomic_write(self.error_file, message + "\n")


def _read_object(file: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _write_object(file: Path, record: Record) -> None:
    atomic_write(file, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def record_differences(was: Record, now: Record, *, place: str = "") -> list[str]:
    """'settings.steps was 1000 and is 500' for each key that differs between two records; hashes are not shown."""
    found: list[str] = []
    for key in sorted({*was, *now}):
        old, new, name = was.get(key), now.get(key), f"{place}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            found += record_differences(old, new, place=f"{name}.")
        elif old == new:
            continue
        elif place.startswith(("model.", "data.")):
            found.append(f"{name} {'is new' if old is None else 'is gone' if new is None else 'has another content'}")
        else:
            found.append(f"{name} was {json.dumps(old)} and is {json.dumps(new)}")
    return found
