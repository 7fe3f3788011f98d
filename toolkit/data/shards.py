"""Shards: Megatron-LM's pair of files, written in one pass and read as plain arrays on memory maps.

    NAME.bin   the tokens of all documents, one after the other, little-endian uint16 or int32
    NAME.idx   magic, u64 version 1, u8 type of the tokens, u64 number of sequences n, u64 n + 1,
               n int32 lengths in tokens, n int64 byte positions in the .bin, n + 1 int64 document numbers 0..n

(The layout is that of `megatron/core/datasets/indexed_dataset.py`; each document is one sequence.)
"""

import hashlib
import mmap
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from toolkit.core.errors import CorpusError

__all__ = ["Shard", "ShardFiles", "ShardWriter", "token_dtype"]

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_CODES: dict[int, np.dtype[Any]] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
# Megatron-LM takes 16 bits below this size, a little short of 2^16.
_SMALLEST_WIDE_VOCABULARY = 65500
_BLOCK = 1 << 18


def token_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """The type of the tokens of a vocabulary, as Megatron-LM chooses it."""
    return _CODES[8] if vocabulary_size < _SMALLEST_WIDE_VOCABULARY else _CODES[4]


def file_names(prefix: Path) -> tuple[Path, Path]:
    """The .bin and the .idx of a shard; `prefix` may itself contain dots."""
    return prefix.with_name(prefix.name + ".bin"), prefix.with_name(prefix.name + ".idx")


@dataclass(frozen=True)
class ShardFiles:
    """What a finished shard holds."""

    documents: int
    tokens: int
    sha256_bin: str
    sha256_idx: str


class ShardWriter:
    """Writes one shard. The two files get their names when both are complete, the .bin first.

    Used as a context manager it closes at the end, and removes what it wrote if an error passes through.

    Args:
        prefix: path of the shard without its ending.
        dtype: type of the tokens; see `token_dtype`.

    Raises:
        CorpusError: the files cannot be written.
    """

    def __init__(self, prefix: Path, *, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._code = {dtype: code for code, dtype in _CODES.items()}[self._dtype]
        self._bin, self._idx = file_names(prefix)
        self._lengths: list[npt.NDArray[np.int32]] = []
        self._documents = self._tokens = 0
        self._hash = hashlib.sha256()
        try:
            self._file = _partial(self._bin).open("wb")
        except OSError as error:
            raise _unwritable(self._bin, error) from error

    def append(self, flat_tokens: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]) -> None:
        """Add documents: their tokens one after the other, and the number of tokens of each.

        Raises:
            CorpusError: the disk does not take them.
        """
        assert int(lengths.sum()) == flat_tokens.size, "lengths do not add up to the tokens"
        limits = np.iinfo(self._dtype)
        assert flat_tokens.size == 0 or limits.min <= flat_tokens.min() <= flat_tokens.max() <= limits.max
        data = np.ascontiguousarray(flat_tokens, dtype=self._dtype).data.cast("B")
        self._hash.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise _unwritable(self._bin, error) from error
        self._lengths.append(lengths.astype("<i4"))
        self._documents += lengths.size
        self._tokens += flat_tokens.size

    def close(self) -> ShardFiles:
        """Write the index, force both files to disk and give them their names.

        Raises:
            CorpusError: the disk does not take them.
        """
        lengths = np.concatenate([np.empty(0, "<i4"), *self._lengths])
        pointers = np.zeros(lengths.size, "<i8")
        np.cumsum(lengths[:-1].astype(np.int64) * self._dtype.itemsize, out=pointers[1:])
        parts = (
            _HEADER.pack(_MAGIC, 1, self._code, lengths.size, lengths.size + 1),
            lengths.tobytes(),
            pointers.tobytes(),
            np.arange(lengths.size + 1, dtype="<i8").tobytes(),
        )
        idx_hash = hashlib.sha256()
        try:
            _sync_and_close(self._file)
            with _partial(self._idx).open("wb") as file:
                for part in parts:
                    idx_hash.update(part)
                    file.write(part)
                _sync_and_close(file)
            _partial(self._bin).replace(self._bin)
            _partial(self._idx).replace(self._idx)
        except OSError as error:
            self.abort()
            raise _unwritable(self._idx, error) from error
        return ShardFiles(self._documents, self._tokens, self._hash.hexdigest(), idx_hash.hexdigest())

    def abort(self) -> None:
        """Remove what was written so far."""
        with suppress(OSError):  # closing flushes, and a full disk refuses that too
            self._file.close()
        for path in (self._bin, self._idx):
            _partial(path).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            self.abort()
        elif not self._file.closed:
            self.close()


class Shard:
    """Read access to one shard: plain arrays on memory maps, opened when first asked for.

    Opening reads the header and the sizes of the files. The index is read through, in bounded memory, when the
    lengths or offsets are first used.

    Attributes:
        prefix: path of the shard without its ending.
        dtype: type of the tokens.
        num_documents: number of documents.
        num_tokens: number of tokens.

    Raises:
        CorpusError: a file is missing or damaged; the message names it.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self._bin, self._idx = file_names(prefix)
        header = self._read_header()
        magic, version, code, num_sequences, num_boundaries = _HEADER.unpack(header)
        if magic != _MAGIC or version != 1:
            raise self._damaged_index("it does not start as a Megatron index (version 1) does")
        if code not in _CODES:
            raise self._damaged_index(f"type code {code} is neither uint16 (8) nor int32 (4)")
        if num_boundaries != num_sequences + 1:
            raise self._damaged_index(f"{num_sequences} sequences with {num_boundaries} document boundaries")
        expected = _HEADER.size + num_sequences * 12 + num_boundaries * 8
        if (size := _size(self._idx)) != expected:
            raise self._damaged_index(f"{size:,} bytes, where {num_sequences:,} documents need {expected:,}")
        self.dtype = _CODES[code]
        self.num_documents = int(num_sequences)
        size = _size(self._bin)
        if size % self.dtype.itemsize:
            raise CorpusError(f"{self._bin} is damaged: {size:,} bytes are no whole number of {self.dtype} tokens.")
        self.num_tokens = size // self.dtype.itemsize

    @cached_property
    def tokens(self) -> npt.NDArray[np.integer]:
        """All tokens, (num_tokens,)."""
        # A plain array: the memmap subclass makes every slice several times dearer.
        return np.frombuffer(_map(self._bin), self.dtype) if self.num_tokens else np.empty(0, self.dtype)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Number of tokens of each document, (num_documents,)."""
        lengths, pointers = self._index
        self._check_index(lengths, pointers)
        return lengths

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Position of each document's first token in `tokens`, (num_documents,)."""
        self._check_index(*self._index)
        return self._index[1] // self.dtype.itemsize

    def document(self, index: int) -> npt.NDArray[np.integer]:
        """The tokens of one document."""
        start = int(self.offsets[index])
        return self.tokens[start : start + int(self.lengths[index])]

    @cached_property
    def _index(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        mapped, count = _map(self._idx), self.num_documents
        lengths = np.frombuffer(mapped, "<i4", count, offset=_HEADER.size)
        return lengths, np.frombuffer(mapped, "<i8", count, offset=_HEADER.size + 4 * count)

    def _check_index(self, lengths: npt.NDArray[np.int32], pointers: npt.NDArray[np.int64]) -> None:
        expected = 0
        for start in range(0, self.num_documents, _BLOCK):
            sizes = lengths[start : start + _BLOCK].astype(np.int64) * self.dtype.itemsize
            ends = expected + np.cumsum(sizes)
            if sizes.min() < 0 or not np.array_equal(pointers[start : start + _BLOCK], ends - sizes):
                raise self._damaged_index("its documents do not follow one another")
            expected = int(ends[-1])
        if (size := _size(self._bin)) != expected:
            raise CorpusError(
                f"{self._bin} is damaged: it has {size:,} bytes, where its index {self._idx.name} "
                f"points at {expected:,}. Copy the corpus again."
            )

    def _read_header(self) -> bytes:
        try:
            with self._idx.open("rb") as file:
                header = file.read(_HEADER.size)
        except OSError as error:
            raise _unreadable(self._idx, error) from error
        if len(header) < _HEADER.size:
            raise self._damaged_index(f"{len(header)} bytes are too few for a header")
        return header

    def _damaged_index(self, why: str) -> CorpusError:
        return CorpusError(f"{self._idx} is damaged: {why}. Copy the corpus again.")


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _sync_and_close(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CorpusError(f"cannot map {path} into memory: {error}.") from error


def _unreadable(path: Path, error: OSError) -> CorpusError:
    return CorpusError(f"cannot read {path}: {error.strerror}. The corpus is not complete: copy or make it again.")


def _unwritable(path: Path, error: OSError) -> CorpusError:
    return CorpusError(f"cannot write {path}: {error.strerror}. Free some space, or choose another folder.")
