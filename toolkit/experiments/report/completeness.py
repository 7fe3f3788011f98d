"""Cells that a grid file declares and that have no result: not run, failed, or diverged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from toolkit.core.text import counted
from toolkit.experiments.cells import Cell, CellFolder, Score
from toolkit.experiments.halving import halve
from toolkit.experiments.report.grid_files import CellScores, Declaration, cell_folder


class Reason(StrEnum):
    """Why a cell has no result."""

    NOT_RUN = "not run"
    FAILED = "failed"
    DIVERGED = "diverged"
    """Final: a cell is a function of its declaration, so that its learning rate cannot be chosen."""


@dataclass(frozen=True)
class MissingCell:
    """A declared cell without a result."""

    cell: Cell
    reason: Reason
    message: str = ""
    """Last line of a failed cell's error, or how its training diverged."""


def missing_cells(folder: Path, declared: Declaration, found: Iterable[CellScores]) -> list[MissingCell]:
    """Declared cells without a result; those of learning rates that halving dropped are not missing.

    Args:
        folder: of the grid.
        declared: its grid file.
        found: its finished cells.
    """
    scores = {cell.cell: Score(cell.cell, cell.metric, cell.validation, cell.test) for cell in found}
    missing = [_missing(folder, cell) for cell in declared.cells if cell not in scores]
    if not declared.is_halving or not _has_validation(declared.cells, scores.values()):
        return missing
    stopped = [one.cell for one in missing if one.reason is not Reason.NOT_RUN]
    halving = halve(declared.cells, scores, stopped)
    return [one for one in missing if one.reason is not Reason.NOT_RUN or halving.keeps(one.cell)]


def _missing(folder: Path, cell: Cell) -> MissingCell:
    place = CellFolder(cell_folder(folder, cell), cell)
    if (diverged := place.diverged) is not None:
        return MissingCell(cell, Reason.DIVERGED, diverged.message)
    error = place.error
    if error is None:
        return MissingCell(cell, Reason.NOT_RUN)
    return MissingCell(cell, Reason.FAILED, error.strip().rpartition("\n")[2])


def _has_validation(cells: Sequence[Cell], scores: Iterable[Score]) -> bool:
    """Whether there is a validation score wherever several rates are declared."""
    rates: dict[tuple[str, str], set[float]] = {}
    for cell in cells:
        rates.setdefault(cell.group, set()).add(cell.learning_rate)
    return all(score.metric in (score.validation or {}) for score in scores if len(rates.get(score.cell.group, ())) > 1)


def summary(missing: Sequence[MissingCell]) -> str:
    """'3 runs have no result: 2 not run, 1 diverged'; empty where none is missing."""
    numbers = {reason: sum(one.reason is reason for one in missing) for reason in Reason}
    parts = ", ".join(f"{number:,} {reason}" for reason, number in numbers.items() if number)
    have = "has" if len(missing) == 1 else "have"
    return f"{counted(len(missing), 'run')} {have} no result: {parts}" if missing else ""
