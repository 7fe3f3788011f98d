"""Cells that a grid file declares but that have no result: not run, failed, or diverged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from toolkit.core.text import counted
from toolkit.experiments.grid.cells import Cell, Score
from toolkit.experiments.grid.folder import Declaration, GridFolder


class MissingReason(StrEnum):
    """Reasons why a cell has no result."""

    NOT_RUN = "not run"
    FAILED = "failed"
    DIVERGED = "diverged"
    """Final: a cell depends only on its declaration, so its learning rate cannot be chosen."""


@dataclass(frozen=True)
class MissingCell:
    """A declared cell without a result."""

    cell: Cell
    reason: MissingReason
    message: str = ""
    """Last line of a failed cell's error, or how its training diverged."""


def missing_cells(folder: GridFolder, declared: Declaration, found: Iterable[Score]) -> list[MissingCell]:
    """Declared cells without a result."""
    there = {score.cell for score in found}
    return [_missing(folder, cell) for cell in declared.cells if cell not in there]


def _missing(folder: GridFolder, cell: Cell) -> MissingCell:
    place = folder.place(cell)
    if (diverged := place.diverged) is not None:
        return MissingCell(cell, MissingReason.DIVERGED, diverged.message)
    error = place.error
    if error is None:
        return MissingCell(cell, MissingReason.NOT_RUN)
    return MissingCell(cell, MissingReason.FAILED, error.strip().rpartition("\n")[2])


def missing_summary(missing: Sequence[MissingCell]) -> str:
    """'3 runs have no result: 2 not run, 1 diverged'; empty if none is missing."""
    numbers = {reason: sum(one.reason is reason for one in missing) for reason in MissingReason}
    parts = ", ".join(f"{number:,} {reason}" for reason, number in numbers.items() if number)
    have = "has" if len(missing) == 1 else "have"
    return f"{counted(len(missing), 'run')} {have} no result: {parts}" if missing else ""
