"""A source: one file to read, and what its name says of its format."""

import os
from dataclasses import dataclass
from enum import StrEnum


class Format(StrEnum):
    """What is in a file, by the extension of its name."""

    PARQUET = ".parquet"
    JSON_LINES = ".jsonl"
    JSON = ".json"
    CSV = ".csv"
    TSV = ".tsv"
    TEXT = ".txt"


class Compression(StrEnum):
    """How a file is compressed, by the extension behind the one of its format."""

    GZIP = ".gz"
    ZSTD = ".zst"
    BZIP2 = ".bz2"
    XZ = ".xz"


_FORMATS = {kind.value: kind for kind in Format} | {".ndjson": Format.JSON_LINES}

READABLE = f"{', '.join(_FORMATS)}, the text formats also compressed ({', '.join(Compression)})"
"""The extensions of readable files, for messages."""


@dataclass(frozen=True)
class Source:
    """One file to read.

    Attributes:
        name: as corpus.json names it: its absolute path, or hub://repository/path.
        format: what is in it.
        num_bytes: its size.
        version: what changes when its content does: when a local file was last modified, the hash of one on the hub.
        revision: the commit that a file on the hub is read at.
    """

    name: str
    format: Format
    num_bytes: int
    version: str
    revision: str = ""

    @property
    def compression(self) -> Compression | None:
        """How it is compressed."""
        return compression_of(self.name)


def compression_of(name: str) -> Compression | None:
    """How a file of this name is compressed; upper and lower case are the same."""
    extension = os.path.splitext(name)[1].lower()
    return Compression(extension) if extension in list(Compression) else None


def extension_of(name: str) -> str:
    """What the name of a file says of its format, in lower case: ".jsonl", ".tar.gz"; "" without an extension."""
    compression = compression_of(name) or ""
    return os.path.splitext(name[: len(name) - len(compression)])[1].lower() + compression


def format_of(name: str) -> Format | None:
    """The format of a file of this name; None if it cannot be read. Parquet is compressed inside."""
    extension = extension_of(name)
    known = _FORMATS.get(extension.removesuffix(compression_of(name) or ""))
    return None if known is Format.PARQUET and extension != known else known
