"""Shards: Megatron-LM's pair of files, written in one pass and read as plain arrays on memory maps.

    NAME.bin   the tokens of all documents, one after the other, little-endian uint16 or int32
    NAME.idx   where each document is; see `toolkit.data.corpus.shard_index`. Written here with one sequence each

(The layout is that of `megatron/core/datasets/indexed_dataset.py`.)
"""

import hashlib
import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from toolkit.core.errors import CorpusError
from toolkit.core.files import sync, unfinished
from toolkit.data.corpus.files import file_size, map_file
from toolkit.data.corpus.shard_index import CODES, HEADER, MAGIC, Lengths, ShardIndex
from toolkit.data.corpus.shard_table import ShardEntry

# Megatron-LM uses 16 bits below this size, a little short of 2^16.
_SMALLEST_WIDE_VOCABULARY = 65500


def token_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """Token dtype for a vocabulary size, as Megatron-LM chooses it."""
    return CODES[8] if vocabulary_size < _SMALLEST_WIDE_VOCABULARY else CODES[4]


def file_names(prefix: Path) -> tuple[Path, Path]:
    """The .bin and the .idx of a shard; `prefix` may itself contain dots."""
    return Path(f"{prefix}.bin"), Path(f"{prefix}.idx")


class ShardWriter:
    """Writer of one shard. The two files are renamed into place when both are complete, the .bin first.

    As a context manager, it closes at the end of the block, or removes what it wrote if the block raises. `prefix` is
    the path without suffix.
    """

    def __init__(self, prefix: Path, *, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._code = {dtype: code for code, dtype in CODES.items()}[self._dtype]
        self._bin, self._idx = file_names(prefix)
        self._lengths: list[npt.NDArray[np.int32]] = []
        self._documents = self._tokens = 0
        self._hash = hashlib.sha256()
        try:
            self._file = unfinished(self._bin).open("wb")
        except OSError as error:
            raise _unwritable(self._bin, error) from error

    def append(self, flat_tokens: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]) -> None:
        """Add documents: their tokens one after the other, and the number of tokens of each."""
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

    def close(self, *, source: str = "") -> ShardEntry:
        """Write the index, sync both files to disk and rename them into place; return the manifest's entry.

        `source` is where its documents are from, in words.
        """
        lengths = np.concatenate([np.empty(0, "<i4"), *self._lengths])
        pointers = np.zeros(lengths.size, "<i8")
        np.cumsum(lengths[:-1].astype(np.int64) * self._dtype.itemsize, out=pointers[1:])
        parts = (
            HEADER.pack(MAGIC, 1, self._code, lengths.size, lengths.size + 1),
            lengths.tobytes(),
            pointers.tobytes(),
            np.arange(lengths.size + 1, dtype="<i8").tobytes(),
        )
        idx_hash = hashlib.sha256()
        try:
            _sync_and_close(self._file)
            with unfinished(self._idx).open("wb") as file:
                for part in parts:
                    idx_hash.update(part)
                    file.write(part)
                _sync_and_close(file)
            unfinished(self._bin).replace(self._bin)
            unfinished(self._idx).replace(self._idx)
            # Before a manifest names the shard: a rename is on disk only once its folder is synced.
            sync(self._idx.parent)
        except OSError as error:
            self.abort()
            raise _unwritable(self._idx, error) from error
        return ShardEntry(
            name=self._bin.stem,
            documents=self._documents,
            tokens=self._tokens,
            sha256_bin=self._hash.hexdigest(),
            sha256_idx=idx_hash.hexdigest(),
            source=source,
        )

    def abort(self) -> None:
        """Remove what was written so far."""
        with suppress(OSError):  # closing flushes, and a full disk refuses that too
            self._file.close()
        for path in (self._bin, self._idx):
            unfinished(path).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            self.abort()
        elif not self._file.closed:
            self.close()


class Shard:
    """Read access to one shard: plain arrays on memory maps, opened on first use.

    Opening reads the header and the sizes of the files. The whole index is read, in bounded memory, when lengths or
    documents are first used. `prefix` is the path of the shard without suffix.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self._bin, idx = file_names(prefix)
        self._index = ShardIndex(idx)
        self.dtype, self.num_documents = self._index.dtype, self._index.num_documents
        size = file_size(self._bin)
        if size % self.dtype.itemsize:
            raise CorpusError(
                f"{self._bin} is damaged: {size:,} bytes are no whole number of {self.dtype} tokens. Copy it again."
            )
        self.num_tokens = size // self.dtype.itemsize

    @cached_property
    def tokens(self) -> npt.NDArray[np.integer]:
        """All tokens, (num_tokens,)."""
        # A plain array: the memmap subclass makes every slice several times slower.
        return np.frombuffer(map_file(self._bin), self.dtype) if self.num_tokens else np.empty(0, self.dtype)

    @cached_property
    def lengths(self) -> Lengths:
        """Number of tokens of each document, (num_documents,); read it one slice at a time."""
        return self._checked_index.lengths

    def document(self, number: int) -> npt.NDArray[np.integer]:
        """The tokens of one document."""
        start, stop = self._checked_index.token_offsets(slice(number, number + 1)).tolist()
        return self.tokens[start:stop]

    @cached_property
    def _checked_index(self) -> ShardIndex:
        expected = self._index.check()
        if (size := file_size(self._bin)) != expected:
            raise CorpusError(
                f"{self._bin} is damaged: it has {size:,} bytes, where its index {self._index.path.name} "
                f"points at {expected:,}. Copy both again."
            )
        return self._index


def _sync_and_close(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _unwritable(path: Path, error: OSError) -> CorpusError:
    return CorpusError(
        f"{path} cannot be written: {error.strerror}. Free space or choose another folder; started again in this one, "
        "the command resumes after the last finished source group."
    )
