"""Files on the hub, read in byte ranges over HTTP: only the bytes that the Parquet reader needs.

A file is resolved once, at the commit that was listed, to the URL that serves it; a few threads request ranges from
there ahead of the reader. After a dropped connection the request resumes behind the last byte received.
"""

import io
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from urllib.parse import urlsplit

from tokenization.hub import endpoint, with_retries
from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.hub import hub_errors
from toolkit.preprocess.sources.source import Source

_WAITS_SECONDS = (0.5, 1, 2, 4, 8)
_CONNECTIONS = 8
_MOST_BLOCKS_AHEAD = 4
_BLOCK_BYTES = 4 << 20
# Downloading this many unneeded bytes is faster than another request.
_SMALL_GAP_BYTES = 1 << 16
_KEPT = "what is finished is kept"


class HubFile:
    """A file on the hub. All methods may be called from several threads."""

    def __init__(self, source: Source, *, waits: Iterable[float] = _WAITS_SECONDS) -> None:
        self.source, self._waits = source, tuple(waits)
        parts = source.name.removeprefix("hub://").split("/")
        self._repository, self._path = "/".join(parts[:2]), "/".join(parts[2:])
        self._lock = threading.Lock()
        self._abandoned = threading.Event()
        self._location: str | None = None
        self._pool = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="hub")

    def open(self, *ranges: tuple[int, int]) -> "RangeReader":
        """Open the file for one thread that reads these ranges (first byte, last byte + 1) in this order."""
        return RangeReader(self, ranges)

    def close(self) -> None:
        """Request no more ranges; those requested still arrive."""
        self._pool.shutdown(wait=False)

    def abandon(self) -> None:
        """Cancel all requests, also those in progress."""
        self._abandoned.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def fetch_later(self, start: int, stop: int) -> "Future[bytes]":
        """Bytes start..stop - 1, fetched by one of the file's threads."""
        return self._pool.submit(self.fetch, start, stop)

    def fetch(self, start: int, stop: int) -> bytes:
        """Bytes start..stop - 1."""
        content, alternative = bytearray(), f"download the data set and give the folder; {_KEPT}"
        with hub_errors(f"the source {self.source.name}", alternative=alternative):
            with_retries(
                lambda: self._fetch_rest(content, start, stop),
                waits=self._waits,
                sleep=self._abandoned.wait,
                report=console().print,
            )
        return bytes(content)

    def _fetch_rest(self, content: bytearray, start: int, stop: int) -> None:
        wanted = f"{start + len(content)}-{stop - 1}"
        location = self._locate()
        if not self._stream_into(content, location, wanted):
            with self._lock:
                self._location = None if self._location == location else self._location
            if not self._stream_into(content, self._locate(), wanted):
                raise UserError(
                    f"could not download the source {self.source.name}: {urlsplit(location).netloc} refuses access. "
                    f"Try again later; {_KEPT}."
                )
        if start + len(content) != stop:
            raise UserError(
                f"could not download the source {self.source.name}: its bytes {wanted} arrived incomplete. Try again "
                f"later; {_KEPT}."
            )

    def _stream_into(self, content: bytearray, location: str, wanted: str) -> bool:
        """Append these bytes; False if the URL has expired."""
        from huggingface_hub import constants
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        is_elsewhere = urlsplit(location).netloc != urlsplit(endpoint()).netloc
        # A URL of another host is signed; it must not see the token.
        headers = build_hf_headers(token=False if is_elsewhere else None)
        headers |= {"Range": f"bytes={wanted}", "Accept-Encoding": "identity"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", location, headers=headers, timeout=timeout) as response:
            if is_elsewhere and response.status_code in (401, 403, 404):
                return False
            hf_raise_for_status(response)
            if response.headers.get("Content-Range") != f"bytes {wanted}/{self.source.num_bytes}":
                raise UserError(
                    f"could not download the source {self.source.name} in parts: {location} ignores byte ranges. "
                    "Download the data set (hf download) and give the folder."
                )
            for piece in response.iter_bytes():
                content += piece
        return True

    def _locate(self) -> str:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        with self._lock:
            if self._location is None:
                revision, hub = self.source.revision, endpoint()
                url = hf_hub_url(self._repository, self._path, repo_type="dataset", revision=revision, endpoint=hub)
                self._location = get_hf_file_metadata(url, endpoint=hub).location
            return self._location


class RangeReader(io.RawIOBase):
    """A seekable file for one thread; the announced ranges are fetched ahead, a few blocks at a time."""

    def __init__(self, file: HubFile, ranges: Iterable[tuple[int, int]]) -> None:
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
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The next byte to read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a byte."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Read the next `size` bytes, fewer only at the end of the file."""
        stop = self._num_bytes if size is None or size < 0 else min(self._position + size, self._num_bytes)
        pieces = []
        while self._position < stop:
            pieces.append(self._piece(self._position, stop))
            self._position += len(pieces[-1])
        return b"".join(pieces)

    @property
    def _num_bytes(self) -> int:
        return self._file.source.num_bytes

    def _piece(self, start: int, stop: int) -> bytes:
        """Bytes from `start` on: of the block that holds it, else those before the next block."""
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
