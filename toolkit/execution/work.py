"""Items of work, what becomes of them, and who runs, shares and watches them.

An item is known by its key. What it is about only its declaration and the program that runs it know.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Key = Any
"""Hashable; logs show its text."""
NOBODY = -1
"""In place of a worker's number: another command has run the item, or it was not run."""


@dataclass(frozen=True)
class Resources:
    """Resources of a worker."""

    cpus: int = 1
    gpus: int = 0


@dataclass(frozen=True, eq=False)
class Work:
    """An item for a worker."""

    key: Key
    payload: Any
    """All that running it takes, as plain data."""
    group: Key = None
    """What a worker keeps from one item to the next, such as loaded data."""
    claim: str = ""
    """What a command has to own before it runs the item; empty: the item alone. One worker has all items of a claim."""
    needs: tuple[Key, ...] = ()
    """Keys of items that have to finish first. One that is not among the items has finished before."""
    resources: Resources = Resources()


@dataclass(frozen=True)
class Finished:
    """A worker has run its item."""

    worker: int
    key: Key


@dataclass(frozen=True)
class Failed:
    """An item has failed; the worker lives on, or is replaced."""

    worker: int
    key: Key
    message: str


@dataclass(frozen=True)
class Lost:
    """A worker has ended in the middle of an item."""

    worker: int
    key: Key
    reason: str


Event = Finished | Failed | Lost


class Executor(Protocol):
    """Workers that run one item at a time."""

    @property
    def workers(self) -> Sequence[int]:
        """Numbers of those that can have items; from one look to the next some may come and go."""

    def start(self, worker: int, work: Work) -> None:
        """Give an idle worker an item."""

    def wait(self, seconds: float) -> list[Event]:
        """Events that have happened, or do within so many seconds."""

    def close(self) -> None:
        """End all workers, in the middle of an item too."""


class WorkShare:
    """Part that a command runs of work that other commands run too; as it is, all of it."""

    def claim(self, name: str) -> bool:
        """Make a claim this command's own; False where another command has it."""
        return True

    def release(self, name: str) -> None:
        """Give up a claim."""

    def ended(self, key: Key) -> Event | None:
        """End of an item by another command since this one began; None where there is none."""
        return None


class Observer(Protocol):
    """Listener to what happens."""

    def on_start(self, worker: int, key: Key) -> None:
        """A worker has begun an item."""

    def on_event(self, event: Event) -> None:
        """An item has finished, has failed for good, or has lost its worker and is run again."""

    def on_look(self) -> None:
        """A second has passed, or less."""
