"""Locks between processes and machines, each by a file. The system frees them when a process ends.

Some file systems have none (Lustre mounted without `flock`, some FUSE ones). There filelock makes do with a file that
exists while the lock is held and names its holder. After a kill it is taken over on the same machine. On another one
nothing tells whether the holder still runs, so a person has to.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from toolkit.core.errors import SettingsError

SECONDS_UNTIL_SAID = 30.0
"""Time before a message says that something waits."""


def try_lock(path: Path, *, timeout: float = 0) -> FileLock | None:
    """The lock `path`, held; None where another process still holds it after `timeout` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=timeout)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the lock `path` inside the block, after waiting for other processes as long as it takes."""
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
    """Make a folder where it is missing, and hold the lock `name` in it inside the block.

    Args:
        timeout: seconds to wait for another process.
        in_use: message of the SettingsError where another process still holds it; which one is added where the system
            does not know.
        unwritable: message of the SettingsError where the folder cannot be written, from the system's reason.
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
    """True where the system frees locks on the file system of a file when their process ends."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
    return True


def is_held(path: Path) -> bool:
    """Some process holds the lock `path`; it is not waited for, nor made. False where it cannot be read."""
    try:
        with path.open("rb") as file:
            # Shared, and given back at once: who wants the lock meanwhile tries again.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return bool(holder_of(path))
    return False


def holder_of(path: Path) -> str:
    """A line to append: who holds the lock `path`, and what to do if it is gone; empty where the system would know."""
    try:
        process, host, *_ = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    return (
        f"\nThe file system has no locks (flock); according to {path}, process {process} on {host} holds it. If that "
        "process no longer runs, remove the file."
    )
