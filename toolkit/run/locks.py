"""Folders into which one process at a time writes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from toolkit.core.errors import SettingsError
from toolkit.core.locks import holder_of


@contextmanager
def locked_folder(
    folder: Path, name: str, *, timeout: float, in_use: str, unwritable: Callable[[str], str]
) -> Iterator[None]:
    """Make a folder where it is missing, and hold the lock `name` in it inside the block.

    Args:
        folder: the folder.
        name: of the lock's file.
        timeout: seconds to wait for another process.
        in_use: message where another process still holds it; which one is added where the system does not know.
        unwritable: the message where the folder cannot be written, from the system's reason.

    Raises:
        SettingsError: with one of these messages.
    """
    lock = FileLock(folder / name, timeout=timeout)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise SettingsError(f"{in_use}{holder_of(folder / name)}") from None
    except OSError as error:
        raise SettingsError(unwritable(error.strerror or str(error))) from None
    try:
        yield
    finally:
        lock.release()
