"""Files that are read in byte ranges, which a few threads fetch ahead of the reader."""

import io
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

_CONNECTIONS = 8
_MOST_BLOCKS_AHEAD = 4
_BLOCK_BYTES = 4 << 20
# Downloading this many unneeded bytes is faster than another request.
_SMALL_GAP_BYTES = 1 << 16


class RangedFile:
    """A remote file of `num_bytes`; `fetch(start, stop)` returns bytes start..stop - 1, on any thread.

    After a `with` block no more ranges are requested; an error that ends the block abandons those in progress too.

    Attributes:
        abandoned: set once its bytes are no longer needed.
    """

    def __init__(self, num_bytes: int, fetch: Callable[[int, int], bytes]) -> None:
        self.num_bytes, self.fetch = num_bytes, fetch
        self.abandoned = threading.Event()
        self._pool = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="ranges")

    def open(self, *ranges: tuple[int, int]) -> io.RawIOBase:
        """Open the file for one thread that reads these ranges (first byte, last byte + 1) in this order."""
        return _RangeReader(self, ranges)

    def fetch_later(self, start: int, stop: int) -> "Future[bytes]":
        """Fetch bytes start..stop - 1 on one of the file's own threads."""
        return self._pool.submit(self.fetch, start, stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandoned.set()
        self._pool.shutdown(wait=False, cancel_futures=kind is not None)


class _RangeReader(io.RawIOBase):
    """A seekable file for one thread; the announced ranges are fetched ahead, a few blocks at a time."""

    def __init__(self, file: RangedFile, ranges: Iterable[tuple[int, int]]) -> None:
        super().__init__()
        self._file, self._position = file, 0
        self._announced = deque(
            (first, min(first + _BLOCK_BYTES, stop))
            for start, stop in _joined(ranges)
            for first in range(start, stop, _BLOCK_BYTES)
        )
        self._pending: deque[tuple[int, int, Future[bytes]]] = deque()
        # Grows: a reader that stops early has not downloaded much.
        self._blocks_ahead = 1
        self._request()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.num_bytes}[whence]
        )
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        # Fewer bytes only at the end of the file.
        stop = self._file.num_bytes if size is None or size < 0 else min(self._position + size, self._file.num_bytes)
        pieces = []
        while self._position < stop:
            pieces.append(self._piece(self._position, stop))
            self._position += len(pieces[-1])
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def _piece(self, start: int, stop: int) -> bytes:
        """Bytes from `start` on: from the block that contains it, else those before the next block."""
        while self._pending and self._pending[0][1] <= start:
            self._pending.popleft()
            self._blocks_ahead = min(self._blocks_ahead + 1, _MOST_BLOCKS_AHEAD)
            self._request()
        if not self._pending or stop <= self._pending[0][0]:
            return self._file.fetch(start, stop)
        first, last, content = self._pending[0]
        if start < first:
            return self._file.fetch(start, first)
        return content.result()[start - first : min(stop, last) - first]

    def _request(self) -> None:
        while self._announced and len(self._pending) < self._blocks_ahead:
            start, stop = self._announced.popleft()
            self._pending.append((start, stop, self._file.fetch_later(start, stop)))


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in order, joined where the gap between them is small."""
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and 0 <= start - joined[-1][1] <= _SMALL_GAP_BYTES:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((start, stop))
    return joined
