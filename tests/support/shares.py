"""What a command has of a grid, scripted."""

from collections.abc import Iterable, Mapping

from toolkit.experiments import Cell
from toolkit.experiments.scheduling import ELSEWHERE, Event, Failed, Finished


class Share:
    """Of a grid that other commands may run too.

    Args:
        alike: tasks whose cells of one seed share a training.
        taken: trainings that another command has, once for each time that it is asked for.
        ended: how another command has ended a task's cell of a seed.
    """

    def __init__(
        self,
        *,
        alike: Iterable[str] = (),
        taken: Iterable[str] = (),
        ended: Mapping[tuple[str, int], type[Finished | Failed]] | None = None,
    ) -> None:
        self._alike, self._taken, self._ended = set(alike), list(taken), ended or {}
        self.claimed: list[str] = []

    def training(self, cell: Cell) -> str:
        return f"seed {cell.seed}" if cell.task in self._alike else f"{cell.task} {cell.seed}"

    def claim(self, training: str) -> bool:
        if training in self._taken:
            self._taken.remove(training)
            return False
        assert training not in self.claimed
        self.claimed.append(training)
        return True

    def release(self, training: str) -> None:
        self.claimed.remove(training)

    def ended(self, cell: Cell) -> Event | None:
        kind = self._ended.get((cell.task, cell.seed))
        if kind is Failed:
            return Failed(ELSEWHERE, cell, "broken")
        return None if kind is None else Finished(ELSEWHERE, cell)
