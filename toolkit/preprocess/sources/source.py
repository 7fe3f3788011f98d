"""A source: one file to read, and what its name says of its format."""

from dataclasses import dataclass
from enum import StrEnum


class Format(StrEnum):
    """What is in a file, by the ending of its name."""

    JSON_LINES = ".jsonl"
    JSON = ".json"
    PARQUET = ".parquet"
    TEXT = ".txt"


class Compression(StrEnum):
    """How a file is packed, by what follows the ending."""

    GZIP = ".gz"
    ZSTD = ".zst"


ENDINGS = {Format.PARQUET.value: Format.PARQUET} | {
    f"{kind}{packed}": kind for kind in (Format.JSON_LINES, Format.JSON, Format.TEXT) for packed in ("", *Compression)
}


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
        """How it is packed."""
        return next((packed for packed in Compression if self.name.endswith(packed)), None)
