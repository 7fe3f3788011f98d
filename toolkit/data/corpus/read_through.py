"""Reading many files through by several threads at once, with progress in bytes."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import TypeVar

from toolkit.core.console import progress

OnRead = Callable[[int], object]
"""Called with the number of bytes just read."""

_Result = TypeVar("_Result")
_SECONDS_BETWEEN_UPDATES = 0.2
_MOST_THREADS = 8


def read_through(label: str, readers: Sequence[Callable[[OnRead], _Result]], *, num_bytes: int) -> list[_Result]:
    """Run readers on threads and return their results in order; the first error ends all and is raised.

    Args:
        label: of the progress bar.
        readers: each reads something and reports how many bytes.
        num_bytes: how much there is to read.
    """
    num_read, is_over, lock = 0, False, Lock()

    def on_read(count: int) -> None:
        nonlocal num_read
        # A file may take an hour, and an error or an interruption should not.
        if is_over:
            raise CancelledError
        with lock:
            num_read += count

    # Reading waits and hashing lets other threads run, so one more than cores.
    num_threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)) + 1)
    with progress(label, total=num_bytes / 1e6, unit="MB") as shown, ThreadPoolExecutor(num_threads) as pool:
        futures = [pool.submit(reader, on_read) for reader in readers]
        left = set(futures)
        try:
            while left:
                done, left = wait(left, timeout=_SECONDS_BETWEEN_UPDATES, return_when=FIRST_EXCEPTION)
                _raise_first([future for future in futures if future in done])
                shown.update(num_read / 1e6)
        finally:
            is_over = True
            pool.shutdown(cancel_futures=True)
        return [future.result() for future in futures]


def _raise_first(futures: Sequence[Future[_Result]]) -> None:
    for future in futures:
        future.result()
