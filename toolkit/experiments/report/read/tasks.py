"""Data sets of the grids, with the number of test items and the identity of the training data from cell folders."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.core.errors import UserError
from toolkit.experiments.grid.cell_folder import CellFolder
from toolkit.experiments.grid.cells import Score

ELSEWHERE = ("MTEB", "EuroEval")
"""Kinds of data sets scored by other tools: nothing was fine-tuned here, and there is no learning rate."""
PlaceOf = Callable[[Score], CellFolder]


@dataclass(frozen=True)
class TaskInfo:
    """A data set of the grids."""

    name: str
    kind: str
    metric: str
    majority: float | None = None
    """Score of the best answer that reads no text; None if there is none, or it is unknown."""
    num_test: int | None = None
    """Number of test items; None if no predictions can be read."""
    training: str | None = None
    """Identity of the training data: cells of equal data, rate and seed are one fine-tuned model; None if unknown."""


def tasks_with_cells(declared: Iterable[str], cells: Iterable[Score], place: PlaceOf) -> tuple[TaskInfo, ...]:
    """Tasks that have cells, whose folders `place` returns; declared tasks first, in their order."""
    found: dict[str, list[Score]] = {}
    for cell in cells:
        found.setdefault(cell.task, []).append(cell)
    order = [*(task for task in declared if task in found), *sorted(found.keys() - set(declared))]
    return tuple(_task(name, found[name], place) for name in order)


def _task(name: str, cells: list[Score], place: PlaceOf) -> TaskInfo:
    kinds = {(cell.kind, cell.metric) for cell in cells}
    if len(kinds) > 1:
        listed = ", ".join(f"{kind} by {metric}" for kind, metric in sorted(kinds))
        raise UserError(
            f"the task {name!r} is scored in {len(kinds)} ways: {listed}. Rename it in one of the grid files: "
            "only scores of one metric compare."
        )
    [(kind, metric)] = kinds
    return TaskInfo(
        name,
        kind,
        metric,
        majority=next((cell.majority for cell in cells if cell.majority is not None), None),
        num_test=next((number for cell in cells if (number := _num_test(place(cell))) is not None), None),
        training=next((data for cell in cells if (data := _training(place(cell))) is not None), None),
    )


def majority_of(tasks: Sequence[TaskInfo]) -> float | None:
    """Mean score of the best answers that read no text; None unless known for all tasks."""
    found = [task.majority for task in tasks if task.majority is not None]
    return math.fsum(found) / len(found) if found and len(found) == len(tasks) else None


def _num_test(place: CellFolder) -> int | None:
    try:
        with place.predictions_file.open("rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return None


def _training(place: CellFolder) -> str | None:
    data = (place.declared or {}).get("data")
    files = data.get("train") if isinstance(data, Mapping) else None
    return " ".join(sorted(map(str, files.values()))) if isinstance(files, Mapping) and files else None
