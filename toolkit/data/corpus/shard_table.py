"""The shards that a manifest lists, as columns: a corpus of 10^13 tokens has tens of thousands of them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, overload

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter

from toolkit.core.files import is_inner_name

Count = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _shard_name(name: str) -> str:
    if not is_inner_name(name.removeprefix("/")):
        raise ValueError("expected a printable name inside the folder, or the absolute path of an adopted pair")
    return name


ShardName = Annotated[str, AfterValidator(_shard_name)]

_ENTRIES_AT_ONCE = 1024
# The text that separates entries in canonical form, and occurs nowhere else: a line end in a string is escaped.
_BETWEEN_ENTRIES = re.compile(rb"\n  \},\n  \{\n")


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A pair of .bin and .idx files.

    Attributes:
        name: path without suffix: relative to the corpus folder, or absolute for adopted files.
        source: its first source, and the number of further ones.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: ShardName
    documents: Count
    tokens: Count
    sha256_bin: Sha256
    sha256_idx: Sha256
    source: str


class ShardTable(Sequence[ShardEntry]):
    """Entries in order, stored as columns, each (number of shards,); entry objects are created on demand."""

    def __init__(self, entries: Iterable[ShardEntry]) -> None:
        self.names: list[str] = []
        self._sources: list[str] = []
        documents, tokens, hashes = [], [], bytearray()
        for entry in entries:
            self.names.append(entry.name)
            self._sources.append(entry.source)
            documents.append(entry.documents)
            tokens.append(entry.tokens)
            hashes += bytes.fromhex(entry.sha256_bin + entry.sha256_idx)
        self.documents: npt.NDArray[np.int64] = np.array(documents, np.int64)
        self.tokens: npt.NDArray[np.int64] = np.array(tokens, np.int64)
        self._hashes = bytes(hashes)

    def sha256_idx(self, number: int) -> str:
        """`ShardEntry.sha256_idx` of one shard, without creating the entry."""
        return self._hashes[64 * number + 32 : 64 * number + 64].hex()

    def as_dicts(self) -> list[dict[str, Any]]:
        """The entries as plain data."""
        return [asdict(entry) for entry in self]

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> ShardEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ShardEntry]: ...
    def __getitem__(self, index: int | slice) -> ShardEntry | Sequence[ShardEntry]:
        numbers = range(len(self))[index]
        return self._entry(numbers) if isinstance(numbers, int) else [self._entry(number) for number in numbers]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    def _entry(self, number: int) -> ShardEntry:
        return ShardEntry(
            name=self.names[number],
            documents=int(self.documents[number]),
            tokens=int(self.tokens[number]),
            sha256_bin=self._hashes[64 * number : 64 * number + 32].hex(),
            sha256_idx=self.sha256_idx(number),
            source=self._sources[number],
        )


def read_entries(text: bytes, start: int, stop: int) -> Iterator[ShardEntry]:
    """Read the entries in text[start:stop], in batches: memory does not grow with their number.

    Raise `ValueError` if one is invalid, or they are not in canonical JSON.
    """
    ends = [found.start() + len(b"\n  }") for found in _BETWEEN_ENTRIES.finditer(text, start, stop)]
    ends = [*ends[_ENTRIES_AT_ONCE - 1 :: _ENTRIES_AT_ONCE], stop]
    for end in ends:
        yield from _ADAPTER.validate_json(b"[" + text[start:end] + b"]")
        start = end + len(b",")


_ADAPTER = TypeAdapter(list[ShardEntry])
