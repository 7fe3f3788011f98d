"""Which cell a worker gets next, and the loop that keeps all workers busy until every cell is done or has failed.

A worker keeps model, data and tokenized inputs of the model and task it last ran, so it gets their next cell as long as
there is one. Cells that share a training are run by one worker, one after another. A lost worker's cell is run again,
by a fresh process; one that loses its worker twice has failed.

Several commands may run one grid. A command claims a training before a worker gets a cell of it. What another one has
claimed is asked for again every few seconds, until it has ended or, where the other command was killed, is free.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from toolkit.experiments.grid.cells import Cell

_MOST_LOSSES = 2
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_CLAIMS = 5.0
ELSEWHERE = -1
"""In place of a worker's number: another command has run the cell."""


@dataclass(frozen=True)
class Job:
    """A cell for a worker, with all that it needs as plain data."""

    cell: Cell
    task: Any


@dataclass(frozen=True)
class Finished:
    """A worker has written what came out of its cell."""

    worker: int
    cell: Cell


@dataclass(frozen=True)
class Failed:
    """A cell has failed; the worker lives on, or is replaced."""

    worker: int
    cell: Cell
    message: str


@dataclass(frozen=True)
class Lost:
    """A worker has ended in the middle of a cell."""

    worker: int
    cell: Cell
    reason: str


Event = Finished | Failed | Lost


class ExecutorKind(StrEnum):
    """Where workers run."""

    LOCAL = "local"
    """Processes of this machine."""
    RAY = "ray"
    """Actors of a Ray cluster."""


class Executor(Protocol):
    """Workers that run one cell at a time."""

    @property
    def workers(self) -> Sequence[int]:
        """Numbers of those that can have cells; from one look to the next some may come and go."""

    def start(self, worker: int, job: Job) -> None:
        """Give an idle worker a cell."""

    def wait(self, seconds: float) -> list[Event]:
        """What has happened, at once or within so many seconds."""

    def close(self) -> None:
        """End all workers, in the middle of a cell too."""


class Share(Protocol):
    """What a command runs of a grid that other commands may run too."""

    def training(self, cell: Cell) -> str:
        """Name of the cell's training; cells that differ in their test data alone share it."""

    def claim(self, training: str) -> bool:
        """Make a training this command's own; False where another command has it."""

    def release(self, training: str) -> None:
        """Give up a claim."""

    def ended(self, cell: Cell) -> Event | None:
        """How another command has ended a cell since this one began; None where none has."""


class Observer(Protocol):
    """Who is told what happens."""

    def on_start(self, worker: int, cell: Cell) -> None:
        """A worker has begun a cell."""

    def on_event(self, event: Event) -> None:
        """A cell has finished, has failed for good, or has lost its worker and is run again."""

    def on_look(self) -> None:
        """A second has passed, or less."""


def run_cells(
    cells: Sequence[Cell], executor: Executor, *, job: Callable[[Cell], Job], share: Share, observer: Observer
) -> dict[Cell, str]:
    """Run cells, and return the messages of those that failed.

    Args:
        cells: in the order of preference.
        executor: its workers are idle.
        job: makes what a worker gets.
        share: claims cells before they run.
        observer: told of everything.
    """
    loop = _Loop(cells, share)
    while loop.pending or loop.running:
        for worker, cell in loop.assign(executor.workers):
            executor.start(worker, job(cell))
            observer.on_start(worker, cell)
        while loop.ended_elsewhere:
            observer.on_event(loop.ended_elsewhere.pop())
        observer.on_look()
        for event in executor.wait(_SECONDS_BETWEEN_LOOKS) if loop.pending or loop.running else ():
            settled = loop.settle(event)
            # Only then another command may have the training: it asks for error.txt first, which the observer writes.
            observer.on_event(settled)
            loop.release(settled.worker)
    observer.on_look()
    return loop.failed


class _Loop:
    """Which cells wait, run and have failed, and the training that each worker is at."""

    def __init__(self, cells: Sequence[Cell], share: Share) -> None:
        self.pending, self.running, self.failed = list(cells), dict[int, Cell](), dict[Cell, str]()
        self.ended_elsewhere: list[Event] = []
        self._groups, self._losses = dict[int, tuple[str, str]](), Counter[Cell]()
        self._share, self._claims, self._refused = share, dict[int, str](), dict[str, float]()

    def assign(self, workers: Sequence[int]) -> Iterator[tuple[int, Cell]]:
        """Idle workers with their next cells."""
        for lost in self._claims.keys() - {*workers, *self.running}:
            self._share.release(self._claims.pop(lost))
        for worker in workers:
            if worker not in self.running and (cell := self._next(worker)) is not None:
                self.pending.remove(cell)
                self.running[worker], self._groups[worker] = cell, cell.group
                yield worker, cell

    def settle(self, event: Event) -> Event:
        """The event; a cell that has lost its last worker has failed."""
        del self.running[event.worker]
        if isinstance(event, Lost):
            self._losses[event.cell] += 1
            # What it had loaded is gone with it.
            del self._groups[event.worker]
            if self._losses[event.cell] < _MOST_LOSSES:
                self.pending.insert(0, event.cell)
            else:
                message = f"its worker ended {_MOST_LOSSES} times, last time by {event.reason}"
                event = Failed(event.worker, event.cell, message)
        if isinstance(event, Failed):
            self.failed[event.cell] = event.message
        return event

    def release(self, worker: int) -> None:
        """Give up a worker's training, if no cell of it waits."""
        if not self._left_of(self._claims[worker]):
            self._share.release(self._claims.pop(worker))

    def _next(self, worker: int) -> Cell | None:
        """A cell of the worker's training, or of another one that can be claimed; None without any."""
        while worker not in self._claims:
            free = self._free()
            if not free:
                return None
            training = self._share.training(next_cell(free, self._groups, worker))
            if not self._share.claim(training):
                self._refused[training] = time.monotonic()
            elif self._drop_ended(training):
                self._claims[worker] = training
            else:
                self._share.release(training)
        return self._left_of(self._claims[worker])[0]

    def _free(self) -> list[Cell]:
        """Cells that wait, but for those of trainings that a worker is at, or another command was a moment ago."""
        recent = time.monotonic() - _SECONDS_BETWEEN_CLAIMS
        taken = {*self._claims.values(), *(name for name, when in self._refused.items() if when > recent)}
        return [cell for cell in self.pending if self._share.training(cell) not in taken]

    def _left_of(self, training: str) -> list[Cell]:
        return [cell for cell in self.pending if self._share.training(cell) == training]

    def _drop_ended(self, training: str) -> bool:
        """Whether cells of a training are left to run, without those that another command has ended."""
        for cell in self._left_of(training):
            event = self._share.ended(cell)
            if event is not None:
                self.pending.remove(cell)
                self.ended_elsewhere.append(event)
            if isinstance(event, Failed):
                self.failed[cell] = event.message
        return bool(self._left_of(training))


def next_cell(pending: Sequence[Cell], groups: Mapping[int, tuple[str, str]], worker: int) -> Cell:
    """Of the worker's own model and task if any is left, else of one that no worker has, else of the longest queue.

    Args:
        pending: at least one.
        groups: model and task that each worker has loaded.
        worker: which is idle.
    """
    queues = Counter(cell.group for cell in pending)
    if groups.get(worker) in queues:
        chosen = groups[worker]
    else:
        others = set(groups.values())
        free = [group for group in queues if group not in others]
        chosen = free[0] if free else max(queues, key=lambda group: queues[group])
    return next(cell for cell in pending if cell.group == chosen)
