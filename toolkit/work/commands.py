"""Commands that share the work of one folder, each with its own workers."""

import os
import socket
import uuid
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Self

from filelock import FileLock

from toolkit.core.console import console
from toolkit.core.errors import SettingsError
from toolkit.core.files import atomic_write
from toolkit.core.locks import has_flock, holder_of, is_held, locked_folder, try_lock
from toolkit.core.text import first_few

_PATIENCE_SECONDS = 600.0
"""Time that another command may take to read or write files that all commands write."""


class Command:
    """This command as one of several that share the work of a folder, from `join` to the end of the block.

    Claims and records are in `work`, a hidden subfolder.

    Args:
        folder: the folder, created if missing.
        name: how the user calls the command, such as "toolkit grid".
        what: what the folder is, such as "grid".
        elsewhere: how to choose another one, such as "set grid.dir to another folder".
    """

    def __init__(self, folder: Path, *, name: str, what: str, elsewhere: str) -> None:
        self.folder, self.work = folder, work_folder(folder)
        self._name, self._what, self._elsewhere = name, what, elsewhere
        self._lock: FileLock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Leave the commands; call it under `locked`, so that of commands that end together exactly one is the last."""
        if self._lock is not None:
            job_file(self.work).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def locked(self) -> AbstractContextManager[None]:
        """The folder's lock, for reading and writing files that all commands write; held briefly."""
        lock, elsewhere = self.folder / ".lock", self._elsewhere
        return locked_folder(
            self.folder,
            lock.name,
            timeout=_PATIENCE_SECONDS,
            in_use=(
                f"another `{self._name}` has held {lock} for {_PATIENCE_SECONDS / 60:.0f} minutes. Wait for it, stop "
                f"it, or {elsewhere}."
            ),
            unwritable=lambda why: (
                f"the {self._what} folder {self.folder} is not writable: {why}. {elsewhere[0].upper()}{elsewhere[1:]}."
            ),
        )

    def join(self, key: str, *, otherwise: str) -> None:
        """Join the commands that share the work; call it under `locked`. All commands have to give the same key.

        Items that failed before are tried again, and attempts lost before do not count if no other command runs.
        `otherwise` says what another key means, such as "another grid file".
        """
        others, kept = self.others(), self.work / "key"
        if others and not (kept.is_file() and kept.read_text(encoding="utf-8") == key):
            raise SettingsError(
                f"another `{self._name}` ({first_few(others)}) is running in {self.folder} with {otherwise}. "
                f"Wait for it, give the same, or {self._elsewhere}."
                f"{holder_of(self.work / 'commands' / f'{others[0]}.lock')}"
            )
        for pattern in ("*.error",) if others else ("*.error", "*.begun", "*.done"):
            for mark in self.work.glob(pattern):
                mark.unlink(missing_ok=True)
        self._lock = try_lock(self.work / "commands" / f"{command_name()}.lock")
        assert self._lock is not None, "no other process has this one's name"
        if not has_flock(self.folder / ".lock"):
            console().print(
                f"the file system of {self.folder} has no locks (flock): what a lost machine was at stays taken. Once "
                f"nothing runs there any more, remove {self.work}, and run the same command again."
            )
        atomic_write(kept, key)

    def others(self) -> list[str]:
        """Names of other commands that share the work."""
        return [name for name in commands_at(self.work) if name != command_name()]


def work_folder(folder: Path) -> Path:
    """Folder of claims and records of the work of a folder."""
    return folder / ".work"


def job_file(work: Path) -> Path:
    """File that this command's workers read."""
    return work / "commands" / f"{command_name()}.job"


def commands_at(work: Path) -> list[str]:
    """Names of the running commands."""
    return [file.stem for file in sorted(work.glob("commands/*.lock")) if is_held(file)]


@cache
def command_name() -> str:
    """Machine, process id, and random digits: two containers may have the first two in common."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:4]}"
