"""The index of a shard, a Megatron-LM .idx: the lengths of its sequences, and the sequences of each document.

    magic, u64 version 1, u8 token type, u64 number of sequences n, u64 number of boundaries d + 1,
    n int32 lengths in tokens, n int64 byte positions in the .bin, d + 1 int64 boundaries

Document i is made of the sequences from boundary i to boundary i + 1. We write one sequence per document; Megatron-LM's
`--split-sentences` writes one per sentence, which are joined again here. (The layout is that of
`megatron/core/datasets/indexed_dataset.py`.)
"""

import mmap
import struct
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from toolkit.core.errors import CorpusError
from toolkit.data.corpus.files import file_size, map_file, unreadable

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
CODES: dict[int, np.dtype[Any]] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
_OTHER_TYPES = {1: "uint8", 2: "int8", 3: "int16", 5: "int64", 6: "float64", 7: "float32"}
_BLOCK = 1 << 18
_IF_WRITTEN_SO = (
    "Where the original differs (sha256sum), copy it again. Else it was written so, as old versions of Megatron-LM do "
    "when they merge: use the pairs that it was merged from, or merge them with a newer one."
)


class Lengths(Protocol):
    """Token counts of documents, read one slice at a time, so that they need not all be in memory."""

    @property
    def size(self) -> int:
        """Number of documents."""

    def __getitem__(self, index: slice, /) -> npt.NDArray[Any]:
        """Token counts of a slice of the documents."""


class ShardIndex:
    """Read access to an index. Opening reads the header; the rest is read, in bounded memory, by `check`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        magic, version, code, num_sequences, num_boundaries = HEADER.unpack(self._read_header())
        if magic != MAGIC or version != 1:
            raise self._damaged("it does not start as a Megatron index (version 1) does")
        if code in _OTHER_TYPES:
            raise CorpusError(
                f"{path} is of {_OTHER_TYPES[code]} tokens (type code {code}): only uint16 (8) and int32 (4) are read, "
                "which Megatron-LM writes for every vocabulary. Rebuild both files from their text."
            )
        if code not in CODES:
            raise self._damaged(f"unknown token type code {code}")
        if num_boundaries < 1:
            raise self._damaged("it has no document boundaries")
        expected = HEADER.size + num_sequences * 12 + num_boundaries * 8
        size = file_size(path)
        if num_sequences and size == expected + num_sequences:
            raise CorpusError(
                f"{path} has a mode for each sequence: it is of a multimodal data set, not of text. Adopt text only."
            )
        if size != expected:
            raise self._damaged(
                f"expected {expected:,} bytes for {num_sequences:,} sequences and {num_boundaries:,} boundaries, "
                f"found {size:,}"
            )
        self.dtype, self.num_sequences, self.num_documents = CODES[code], int(num_sequences), int(num_boundaries) - 1

    @cached_property
    def sequence_lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each sequence, (num_sequences,)."""
        return np.frombuffer(self._map, "<i4", self.num_sequences, HEADER.size)

    @cached_property
    def pointers(self) -> npt.NDArray[np.int64]:
        """Position of each sequence in the .bin, in bytes, (num_sequences,)."""
        return np.frombuffer(self._map, "<i8", self.num_sequences, HEADER.size + 4 * self.num_sequences)

    @cached_property
    def boundaries(self) -> npt.NDArray[np.int64]:
        """Index of the first sequence of each document, then the number of sequences, (num_documents + 1,)."""
        return np.frombuffer(self._map, "<i8", self.num_documents + 1, HEADER.size + 12 * self.num_sequences)

    @cached_property
    def lengths(self) -> Lengths:
        """Tokens of each document."""
        is_plain = self.num_documents == self.num_sequences and self._boundaries_count_up()
        return self.sequence_lengths if is_plain else _JoinedLengths(self)

    def token_offsets(self, documents: slice) -> npt.NDArray[np.int64]:
        """Token offsets of the starts of these documents, then of the end of the last: one more than documents."""
        start, stop, _ = documents.indices(self.num_documents)
        sequences = self.boundaries[start : stop + 1]
        found = np.full(sequences.size, self.num_tokens, np.int64)
        # Documents without sequences may follow the last sequence.
        is_inside = sequences < self.num_sequences
        found[is_inside] = self.pointers[sequences[is_inside]] // self.dtype.itemsize
        return found

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        if not self.num_sequences:
            return 0
        return int(self.pointers[-1]) // self.dtype.itemsize + int(self.sequence_lengths[-1])

    def check(self) -> int:
        """Read the whole index; return the number of bytes that the .bin must have.

        Raise `CorpusError` unless the sequences are contiguous and the documents take each sequence once.
        """
        expected = 0
        for start in range(0, self.num_sequences, _BLOCK):
            sizes = self.sequence_lengths[start : start + _BLOCK].astype(np.int64) * self.dtype.itemsize
            ends = expected + np.cumsum(sizes)
            if sizes.min() < 0 or not np.array_equal(self.pointers[start : start + _BLOCK], ends - sizes):
                raise self._damaged("its sequences do not follow one another", _IF_WRITTEN_SO)
            expected = int(ends[-1])
        for start in range(0, self.num_documents, _BLOCK):
            some = self.boundaries[start : start + _BLOCK + 1]
            if (np.diff(some) < 0).any():
                raise self._damaged("its documents do not follow one another", _IF_WRITTEN_SO)
        if self.boundaries[0] != 0 or self.boundaries[-1] != self.num_sequences:
            raise self._damaged(
                f"its documents are sequences {self.boundaries[0]:,} to {self.boundaries[-1]:,} "
                f"of {self.num_sequences:,}",
                _IF_WRITTEN_SO,
            )
        return expected

    def _boundaries_count_up(self) -> bool:
        return all(
            np.array_equal(self.boundaries[start : start + _BLOCK], np.arange(start, min(start + _BLOCK, stop)))
            for stop in [self.num_documents + 1]
            for start in range(0, stop, _BLOCK)
        )

    @cached_property
    def _map(self) -> mmap.mmap:
        return map_file(self.path)

    def _read_header(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                header = file.read(HEADER.size)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(header) < HEADER.size:
            raise self._damaged(f"{len(header)} bytes are too few for a header")
        return header

    def _damaged(self, why: str, remedy: str = "Copy it again.") -> CorpusError:
        return CorpusError(f"{self.path} is damaged: {why}. {remedy}")


class _JoinedLengths:
    """Token counts of documents with any number of sequences each."""

    def __init__(self, index: ShardIndex) -> None:
        self._index, self.size = index, index.num_documents

    def __getitem__(self, index: slice, /) -> npt.NDArray[np.int64]:
        return np.diff(self._index.token_offsets(index))
