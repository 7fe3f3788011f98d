"""Files of a corpus: memory maps under one limit per process, lookups by short names, whole reads by threads."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

from toolkit.core.console import progress
from toolkit.core.errors import CorpusError
from toolkit.core.files import descriptor_limit

OnRead = Callable[[int], object]
"""Called with the number of bytes just read."""

_Result = TypeVar("_Result")

# Each mapping holds a file descriptor. Their maximum number, if the system's hard limit allows it: far below its limit
# on mappings (65,530).
_MOST_DESCRIPTORS = 1 << 14
# A shard maps two files, and a process needs descriptors for much else: sockets, devices, pipes.
_DESCRIPTORS_FOR_EACH = 4

_SECONDS_BETWEEN_UPDATES = 0.2
_MOST_THREADS = 8


def kept_open(open_one: Callable[[int], _Result], number: int) -> _Result:
    """`open_one(number)`, called on first use; the most recently used results stay open, over all callers."""
    return cast(_Result, _opened()(open_one, number))


@cache
def _opened() -> Callable[[Callable[[int], Any], int], Any]:
    most = min(descriptor_limit(), _MOST_DESCRIPTORS) // _DESCRIPTORS_FOR_EACH
    return lru_cache(maxsize=most)(lambda open_one, number: open_one(number))


def file_size(path: Path) -> int:
    """Size of a file of a corpus, in bytes."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def size_if_there(path: str | Path, *, folder: int | None = None) -> int | None:
    """Size of a file, in bytes; None if absent. The path may be relative to `folder`, the descriptor of an open one."""
    try:
        return os.stat(path, dir_fd=folder).st_size
    except OSError:
        return None


def map_file(path: Path) -> mmap.mmap:
    """Map a nonempty file of a corpus into memory."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = _too_many_open(error) or "Copy it to a disk of this machine."
        raise CorpusError(f"{path} cannot be mapped into memory: {reason}. {remedy}") from error


def unreadable(path: Path, error: OSError) -> CorpusError:
    """The error for a file that cannot be read."""
    remedy = _too_many_open(error) or "The corpus is incomplete: copy it again, or rebuild it."
    return CorpusError(f"{path} cannot be read: {error.strerror}. {remedy}")


def _too_many_open(error: Exception) -> str:
    is_it = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    return "Raise the limit on open files (ulimit -n)." if is_it else ""


@contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """A descriptor of the folder, to stat many of its files by short names."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise CorpusError(
            f"{folder} cannot be read: {error.strerror}. Allow access to it, or give another corpus."
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_through(label: str, readers: Sequence[Callable[[OnRead], _Result]], *, num_bytes: int) -> list[_Result]:
    """Run readers on threads and return their results in order; the first error stops all of them and is raised.

    Each reader reports how many bytes it read, of `num_bytes` in total, for a progress bar.
    """
    num_read, is_over, lock = 0, False, Lock()

    def on_read(count: int) -> None:
        nonlocal num_read
        # Reading a file may take an hour; stopping after an error or an interrupt should not.
        if is_over:
            raise CancelledError
        with lock:
            num_read += count

    # Reading blocks and hashing lets other threads run, so one thread more than cores.
    num_threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)) + 1)
    with progress(label, total=num_bytes / 1e6, unit="MB") as shown, ThreadPoolExecutor(num_threads) as pool:
        futures = [pool.submit(reader, on_read) for reader in readers]
        left = set(futures)
        try:
            while left:
                done, left = wait(left, timeout=_SECONDS_BETWEEN_UPDATES, return_when=FIRST_EXCEPTION)
                # Raises the first error.
                _ = [future.result() for future in futures if future in done]
                shown.update(num_read / 1e6)
        finally:
            is_over = True
            pool.shutdown(cancel_futures=True)
        return [future.result() for future in futures]
