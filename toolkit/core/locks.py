"""File locks between processes and machines. The system releases them when a process ends.

Some file systems have none (Lustre mounted without `flock`, some FUSE ones). There, filelock falls back to a file that
exists while the lock is held and names its holder. After a kill, a process on the same machine takes the lock over.
Another machine cannot tell whether the holder still runs, so a person has to.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from toolkit.core.errors import SettingsError

SECONDS_UNTIL_SAID = 30.0
"""Seconds of waiting before a message reports it."""


def try_lock(path: Path, *, timeout: float = 0) -> FileLock | None:
    """Acquire the lock `path`; None if another process still holds it after `timeout` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=timeout)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the lock `path` inside the block; wait for other processes without a time limit."""
    lock = try_lock(path, timeout=SECONDS_UNTIL_SAID)
    if lock is None:
        if holder := holder_of(path):
            print(f"waiting for the lock {path}{holder}", flush=True)
        lock = FileLock(path)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_folder(
    folder: Path, name: str, *, timeout: float, in_use: str, unwritable: Callable[[str], str]
) -> Iterator[None]:
    """Create a folder if it is missing, and hold the lock `name` in it inside the block.

    Args:
        timeout: seconds to wait for another process.
        in_use: message of the SettingsError if another process still holds it; on file systems without locks, the
            holder is appended.
        unwritable: message of the SettingsError if the folder cannot be written, given the system's reason.
    """
    try:
        lock = try_lock(folder / name, timeout=timeout)
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise SettingsError(unwritable(reason)) from None
    if lock is None:
        raise SettingsError(f"{in_use}{holder_of(folder / name)}")
    try:
        yield
    finally:
        lock.release()


def has_flock(path: Path) -> bool:
    """True if the file system of `path` has locks that the system releases when their process ends."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
    return True


def is_held(path: Path) -> bool:
    """True if a process holds the lock `path`, without waiting for it or creating it. False if it cannot be read."""
    try:
        with path.open("rb") as file:
            # Shared, and released at once: a process that wants the lock in the meantime tries again.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return bool(holder_of(path))
    return False


def holder_of(path: Path) -> str:
    """A line to append: who holds the lock `path`, and what to do if it is gone; empty if the file system has locks."""
    try:
        process, host, *_ = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    return (
        f"\nThe file system has no locks (flock); according to {path}, process {process} on {host} holds it. If that "
        "process no longer runs, remove the file."
    )
