"""Sharing of a grid between commands: which of them runs which cells.

A command holds a lock of its own for as long as it runs, and one for each training while its workers are at it. The
system gives back the locks of a command that is killed, and others run its cells; where it has none (no `flock`), those
of a machine that was lost stay, and who waits for them names the file. Results are written under the lock of the grid's
folder, which nobody holds for long.
"""

import os
import shutil
import socket
import time
import uuid
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

from filelock import FileLock

from toolkit.core.errors import SettingsError
from toolkit.core.locks import SECONDS_UNTIL_SAID, holder_of, locked_folder, try_lock
from toolkit.core.text import first_few
from toolkit.execution.work import NOBODY, Event, Failed, Finished, WorkShare
from toolkit.experiments.grid.cells import Cell
from toolkit.experiments.grid.plan import GridPlan

_PATIENCE_SECONDS = 600.0
"""Time that another command may take to read or write the results of a large grid."""


class GridShare(WorkShare):
    """Part of a grid that this command runs, from `join` to the end of the block."""

    def __init__(self, plan: GridPlan) -> None:
        self._plan, self._held = plan, dict[str, FileLock]()
        self._errors = {cell: _mark(plan.folder.place(cell).error_file) for cell in plan.cells}
        self._idle_since: float | None = None
        self._named = set[Path]()

    def __enter__(self) -> "GridShare":
        return self

    def __exit__(self, *_: object) -> None:
        while self._held:
            self._held.popitem()[1].release()

    def locked(self) -> AbstractContextManager[None]:
        """The lock of the folder, for reading and writing what all commands write."""
        folder = self._plan.folder.path
        return locked_folder(
            folder,
            ".lock",
            timeout=_PATIENCE_SECONDS,
            in_use=(
                f"another `toolkit grid` has held {folder / '.lock'} for {_PATIENCE_SECONDS / 60:.0f} minutes. Wait "
                "for it, stop it, or set grid.dir to another folder."
            ),
            unwritable=lambda why: f"the grid folder {folder} is not writable: {why}. Set grid.dir to one that is.",
        )

    def join(self, declaration: str) -> None:
        """Be one of the commands that run the grid, under `locked`; all have to run it from the same `declaration`."""
        others, kept = self.others(), self._plan.folder.declaration_file
        if others and not (kept.is_file() and kept.read_text(encoding="utf-8") == declaration):
            raise SettingsError(
                f"another `toolkit grid` ({first_few(others)}) is running in {self._plan.folder} with another grid "
                "file, or other checkpoints of its runs. Wait for it, give the same file, or set grid.dir to another "
                "folder."
                f"{holder_of(self._commands / f'{others[0]}.lock')}"
            )
        if not others:
            shutil.rmtree(logs_folder(self._plan).parent, ignore_errors=True)
        own = _try_lock(self._commands / f"{command_name()}.lock")
        assert own is not None, "no other process has this one's name"
        self._held[command_name()] = own

    def others(self) -> list[str]:
        """Names of other commands that run the grid, under `locked`."""
        alive = []
        for file in sorted(self._commands.glob("*.lock")):
            lock = None if file.stem == command_name() else _try_lock(file)
            if lock is not None:
                lock.release()
            elif file.stem != command_name():
                alive.append(file.stem)
        return alive

    @property
    def _commands(self) -> Path:
        return self._plan.folder.locks / ".commands"

    def claim(self, name: str) -> bool:
        """Make a training this command's own; False where another command has it."""
        path = self._plan.folder.locks / f"{name}.claim"
        lock = _try_lock(path)
        if lock is None:
            self._name_holder(path)
        else:
            self._held[name], self._idle_since = lock, None
        return lock is not None

    def _name_holder(self, path: Path) -> None:
        """Say once who holds a lock, where this command has been idle for a while, and the system would not free it."""
        is_idle = not self._held.keys() - {command_name()}
        self._idle_since = (self._idle_since or time.monotonic()) if is_idle else None
        has_waited = self._idle_since is not None and time.monotonic() - self._idle_since >= SECONDS_UNTIL_SAID
        if has_waited and path not in self._named and (holder := holder_of(path)):
            self._named.add(path)
            print(f"waiting for the lock {path}{holder}", flush=True)

    def release(self, name: str) -> None:
        """Give up a claim; trained weights that no cell needs any more are removed."""
        cells = self._plan.cells_by_training[name]
        if len(cells) > 1 and all(self._plan.outcome(cell) is not None for cell in cells):
            shutil.rmtree(self._plan.folder.trainings / name, ignore_errors=True)
        self._held.pop(name).release()

    def ended(self, key: Cell) -> Event | None:
        """End of a cell by another command since this one began; None where there is none."""
        if self._plan.outcome(key) is not None:
            return Finished(NOBODY, key)
        place = self._plan.folder.place(key)
        if (message := place.error) is None or _mark(place.error_file) == self._errors[key]:
            return None
        return Failed(NOBODY, key, message)


def logs_folder(plan: GridPlan) -> Path:
    """Folder of what this command's workers print."""
    return plan.folder.logs / command_name()


@cache
def command_name() -> str:
    """Machine, process, and some digits: those of two containers may have the first two in common."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:4]}"


def _try_lock(path: Path) -> FileLock | None:
    try:
        return try_lock(path)
    except OSError as error:
        raise SettingsError(
            f"could not lock {path}: {error.strerror or error}. Set grid.dir to a folder that can be locked."
        ) from None


def _mark(file: Path) -> tuple[int, int] | None:
    """Mark that tells a file from the one that was there before; None if there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
