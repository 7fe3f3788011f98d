"""Items shared by identical processes, on any machines that see one folder: each takes a free item, does it, repeats.

There is no scheduler. Processes know of each other only through files in the job's folder: an item's lock, which the
system frees when its holder ends, a line for each attempt at it, and how it ended. The results themselves say whether
an item is done, and are checked before it starts.
"""

import hashlib
import os
import re
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from filelock import FileLock

from toolkit.core.errors import ToolkitError
from toolkit.core.files import atomic_write
from toolkit.core.locks import is_held, try_lock

_MOST_LOSSES = 2
_SECONDS_BETWEEN_LOOKS = 0.5
_LOST = "lost: "
"""Prefix of a line that says why an attempt was lost, written only if the worker's command is alive. A command that is
killed with its workers, or while doing an item itself, does not count against the item."""


class StoppedError(Exception):
    """The process was asked to stop, and has saved its work: its item is free, and not failed."""


class BrokenError(Exception):
    """An item has failed because of a bug or a broken device: its process should do no other item."""


@dataclass(frozen=True, eq=False)
class Item:
    """A part of a job."""

    key: str
    payload: Any = None
    """Everything needed to do it, as plain data."""
    group: Hashable = None
    """Items of one group share what a process keeps between items, such as loaded data."""
    claim: str = ""
    """Items of one claim are done by one process, one after another; empty: only this item."""
    needs: tuple[str, ...] = ()
    """Keys of items that have to be done first. A key that is not among the items counts as done."""

    @property
    def claimed_as(self) -> str:
        """Claim that a process must hold to do the item."""
        return self.claim or self.key


class Job:
    """Items of a folder, and how to do one; worker processes get a copy.

    A subclass keeps loaded data in attributes that it fills when it does its first item.
    """

    def __init__(self, folder: Path, items: Sequence[Item]) -> None:
        self.folder, self.items = folder, items

    def do(self, item: Item) -> None:
        """Do an item. Raise `ToolkitError` if it fails and the process can go on with others."""
        raise NotImplementedError

    def is_done(self, item: Item) -> bool:
        """True if the result of an item exists."""
        raise NotImplementedError

    def fail(self, item: Item, message: str) -> None:
        """Store the message of a failed item where users look for it."""


class Claims:
    """State of a job's items, from their files at the last look, and the claim that this process holds."""

    def __init__(self, job: Job) -> None:
        self.items = {item.key: item for item in job.items}
        assert len(self.items) == len(job.items), "two items have one key"
        # Raises for items that wait for one another: they would never start.
        order = TopologicalSorter({item.key: item.needs for item in job.items}).static_order()
        self._needy = [item for key in order if (item := self.items.get(key)) is not None and item.needs]
        self._job, self._names = job, {key: _file_name(key) for key in self.items}
        self.done, self.failed, self.begun = set[str](), dict[str, str](), set[str]()
        self._held: tuple[str, FileLock] | None = None
        self._group: Hashable = None

    def look(self) -> None:
        """Find out which items have started, are done and have failed; an item that needs a failed one fails too."""
        with suppress(FileNotFoundError):
            names = set(os.listdir(self._job.folder))
            self.done, self.begun, errors = (
                {key for key, name in self._names.items() if f"{name}.{end}" in names}
                for end in ("done", "begun", "error")
            )
            self.failed = {key: self.failed.get(key) or self._file(key, "error").read_text() for key in errors}
            self.begun -= self.done | errors
        for item in self._needy:
            broken = next((need for need in item.needs if need in self.failed), None)
            if broken is not None and item.key not in self.done:
                self.failed.setdefault(item.key, f"it needs {broken}, which has failed")

    @property
    def left(self) -> list[Item]:
        """Items that are neither done nor failed."""
        return [item for key, item in self.items.items() if key not in self.done and key not in self.failed]

    @property
    def running(self) -> set[str]:
        """Keys of the items that a process is working on."""
        return {key for key in self.begun if is_held(self._lock_file(self.items[key]))}

    def is_ready(self, item: Item) -> bool:
        """True if everything that an item needs is done."""
        return all(need in self.done or need not in self.items for need in item.needs)

    def claim(self) -> Item | None:
        """Wait for an item that is free and ready, and start it; None when all are done or have failed."""
        while True:
            self.look()
            ready = [item for item in self.left if self.is_ready(item)]
            own = [item for item in ready if self._held is not None and item.claimed_as == self._held[0]]
            if own:
                if self._begin(own[0]):
                    return own[0]
            elif not self.left:
                self.release()
                return None
            elif not self._hold_one_of(ready):
                time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _hold_one_of(self, ready: Sequence[Item]) -> bool:
        """Take a new claim, if one is free: preferably for data that this process has loaded, then for data that no
        process has, then from the longest queue.
        """
        self.release()
        queues = Counter(item.group for item in ready)
        busy = {self.items[key].group for key in self.begun}

        def preference(item: Item) -> tuple[bool, bool, bool, int]:
            is_taken = item.group in busy
            return item.key in self.begun, item.group != self._group, is_taken, -queues[item.group] * is_taken

        for item in sorted(ready, key=preference):
            if (lock := try_lock(self._lock_file(item))) is not None:
                self._held = item.claimed_as, lock
                return True
        return False

    def release(self) -> None:
        """Release this process's claim."""
        if self._held is not None:
            self._held[1].release()
            self._held = None

    def _begin(self, item: Item) -> bool:
        """Record an attempt at an item; False if it turns out to be done already, or was lost too often."""
        attempts, marks = self._file(item.key, "begun"), list[str]()
        with suppress(FileNotFoundError):
            marks = attempts.read_text().splitlines()
        losses = [mark.removeprefix(_LOST) for mark in marks if mark.startswith(_LOST)]
        if self._job.is_done(item):
            self.end(item)
        elif len(losses) >= _MOST_LOSSES:
            self.end(item, f"its worker ended {len(losses)} times, last time by {losses[-1]}")
        else:
            self._group = item.group
            with attempts.open("a") as file:
                file.write(f"{process_name(os.getpid())}\n")
            return True
        return False

    def end(self, item: Item, message: str | None = None) -> None:
        """Record that an item is done; with a message, that it has failed."""
        if message is not None:
            self._job.fail(item, message)
        atomic_write(self._file(item.key, "done" if message is None else "error"), message or "")
        self.free(item)

    def free(self, item: Item) -> None:
        """Forget that an item was started."""
        self._file(item.key, "begun").unlink(missing_ok=True)

    def lose(self, process: str, reason: str) -> str | None:
        """Record why a process ended, and return the key of the item that it was working on; None if none."""
        self.look()
        for key in self.begun:
            with suppress(FileNotFoundError), self._file(key, "begun").open("r+") as file:
                # Another process may have started it since.
                if process in file.read().splitlines():
                    file.write(f"{_LOST}{reason}\n")
                    return key
        return None

    def _file(self, key: str, end: str) -> Path:
        return self._job.folder / f"{self._names[key]}.{end}"

    def _lock_file(self, item: Item) -> Path:
        return self._job.folder / f"{_file_name(item.claimed_as)}.lock"


def work_on(job: Job, *, say: Callable[[str], object] = lambda text: None) -> None:
    """Do items of a job, in this process, until each is done or has failed; raise `BrokenError` or `StoppedError`.

    `say` is called with the key of each item that starts, and with the message of each that fails.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    claims = Claims(job)
    try:
        while (item := claims.claim()) is not None:
            say(f"--- {item.key}")
            try:
                job.do(item)
            except StoppedError:
                claims.free(item)
                raise
            except ToolkitError as error:
                say(str(error))
                claims.end(item, str(error))
            except Exception as error:
                message = _described(error)
                say(message)
                claims.end(item, message)
                raise BrokenError from error
            else:
                claims.end(item)
    finally:
        claims.release()


def process_name(number: int) -> str:
    """Name of a process of this machine in records of attempts."""
    return f"{socket.gethostname()} {number}"


def _described(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"could not read or write {error.filename or 'a file'}: {error.strerror}"
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error)).rstrip()}"


def _file_name(key: str) -> str:
    """File name for a key: its readable part, and digits unique to the key."""
    readable = re.sub(r"[^\w.@=-]", "_", key)[:150]
    return f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
