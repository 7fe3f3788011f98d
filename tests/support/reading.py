"""Sources as readers give them, and packed as their names say."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from toolkit.preprocess.readers import Row, Span, iterate_spans
from toolkit.preprocess.settings import ReadingSettings
from toolkit.preprocess.sources import find_sources


def zstd(content: bytes) -> bytes:
    """One frame."""
    return bytes(pa.Codec("zstd").compress(content, asbytes=True))


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": partial(gzip.compress, compresslevel=1, mtime=0), ".zst": zstd, ".bz2": bz2.compress, ".xz": lzma.compress,
}  # fmt: skip


def pack(path: Path, content: bytes) -> Path:
    """Write content as the ending says; returns `path`."""
    path.write_bytes(COMPRESS.get(path.suffix.lower(), bytes)(content))
    return path


def spans_of(path: Path, **reading: Any) -> list[Span]:
    """The spans of one source, read by settings of these values."""
    (source,) = find_sources([str(path)])
    return list(iterate_spans(source, ReadingSettings(**reading)))


def rows_of(path: Path, **reading: Any) -> list[Row]:
    """Its rows in order."""
    return [row for span in spans_of(path, **reading) for row in span.read()]
