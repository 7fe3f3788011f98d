"""A source: one file to read, and what its name says of its format."""

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from toolkit.core.console import console
from toolkit.core.text import counted


class Format(StrEnum):
    """Content of a file, by the extension of its name."""

    PARQUET = ".parquet"
    JSON_LINES = ".jsonl"
    JSON = ".json"
    CSV = ".csv"
    TSV = ".tsv"
    TEXT = ".txt"


class Compression(StrEnum):
    """Compression of a file, by the extension behind the one of its format."""

    GZIP = ".gz"
    ZSTD = ".zst"
    BZIP2 = ".bz2"
    XZ = ".xz"


_FORMATS = {kind.value: kind for kind in Format} | {".ndjson": Format.JSON_LINES}

READABLE = f"{', '.join(_FORMATS)}, the text formats also compressed ({', '.join(Compression)})"
"""The extensions of readable files, for messages."""


@dataclass(frozen=True)
class Source:
    """A file to read.

    Attributes:
        name: as corpus.json names it: its absolute path, its URL, or hub://repository/path.
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
        """Compression of the file."""
        return compression_of(self.name)


def compression_of(name: str) -> Compression | None:
    """Compression of a file of this name; upper and lower case are the same."""
    extension = os.path.splitext(name)[1].lower()
    return Compression(extension) if extension in list(Compression) else None


def extension_of(name: str) -> str:
    """The part of a file's name that tells its format, in lower case: ".jsonl", ".tar.gz"; "" without an extension."""
    compression = compression_of(name) or ""
    return os.path.splitext(name[: len(name) - len(compression)])[1].lower() + compression


def format_of(name: str) -> Format | None:
    """The format of a file of this name; None if it cannot be read. Parquet is compressed inside."""
    extension = extension_of(name)
    known = _FORMATS.get(extension.removesuffix(compression_of(name) or ""))
    return None if known is Format.PARQUET and extension != known else known


def report_other_kinds(names: Collection[str], *, place: str = "") -> None:
    """Print, in one line, how many files of which kinds are left out, and of what place."""
    if not names:
        return
    kinds = Counter(extension_of(name) or "without an extension" for name in names)
    most = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))[:8]
    found = ", ".join(f"{count:,} {kind}" for kind, count in most)
    more = f" and {len(kinds) - 8} more kinds" if len(kinds) > 8 else ""
    console().print(f"Left out {counted(len(names), 'file')} of other kinds{place}: {found}{more}.")
