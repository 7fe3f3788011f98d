"""Pairs of .bin and .idx that somebody else wrote: which there are, and what is in them."""

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from toolkit.core.errors import CorpusError, UserError
from toolkit.core.files import hash_file
from toolkit.data import ShardEntry
from toolkit.data.corpus.read_through import OnRead
from toolkit.data.corpus.shards import Shard, file_names

_ENDINGS = (".bin", ".idx")
_PIECE_BYTES = 1 << 22
_DOCUMENTS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class AdoptedShard:
    """A pair that was read through.

    Attributes:
        entry: what corpus.json will say of it.
        num_ended: documents that are not empty.
        num_without_end: those of them whose last token is not the end-of-document token.
    """

    entry: ShardEntry
    num_ended: int
    num_without_end: int


def find_shards(named: Sequence[str]) -> list[Path]:
    """The pairs that were named, as absolute paths without ending: bytewise in order, each once.

    Args:
        named: paths with or without `.bin` or `.idx`, and globs.

    Raises:
        UserError: nothing is there, or one of the two files is missing.
    """
    found = {os.path.abspath(prefix) for name in named for prefix in _prefixes(name)}
    for prefix in found:
        if not prefix.isprintable():
            raise UserError(f"the path {prefix!r} cannot be recorded in corpus.json. Rename it.")
        missing = [f"{prefix}{ending}" for ending in _ENDINGS if not os.path.isfile(f"{prefix}{ending}")]
        if missing:
            raise UserError(f"{missing[0]} is missing: a pair is {prefix}.bin and {prefix}.idx. Copy both.")
    return [Path(prefix) for prefix in sorted(found, key=os.fsencode)]


def _prefixes(name: str) -> list[str]:
    stem = _without_ending(name)
    if any(os.path.isfile(f"{stem}{ending}") for ending in _ENDINGS):
        return [stem]
    if glob.has_magic(name):
        matches = [path for ending in _ENDINGS for path in glob.glob(f"{stem}{ending}", recursive=True)]
        if matches:
            return [_without_ending(path) for path in matches]
        raise UserError(f"no pair matches {name}. Give pairs by the path without .bin or .idx, or by a glob.")
    if os.path.isdir(name):
        raise UserError(f"{name} is a folder. Give the pairs in it, for example {os.path.join(name, '*')!r}.")
    raise UserError(
        f"no such pair: {name!r}: neither {stem}.bin nor {stem}.idx exists. Give pairs by the path without the ending."
    )


def _without_ending(name: str) -> str:
    return name[:-4] if name.endswith(_ENDINGS) else name


def examine_shard(shard: Shard, on_read: OnRead, *, vocabulary_size: int, eod_id: int | None) -> AdoptedShard:
    """Read a pair through, in bounded memory.

    Args:
        shard: the pair.
        on_read: called with the number of bytes read.
        vocabulary_size: every id has to be below.
        eod_id: the token that should end documents; None: any may.

    Raises:
        CorpusError: the index is damaged, or an id is outside the vocabulary.
        OSError: a file cannot be read.
    """
    bin_path, idx_path = file_names(shard.prefix)
    ends = _Ends(shard, eod_id)
    digest, position = hashlib.sha256(), 0
    with bin_path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            tokens = np.frombuffer(piece, shard.dtype)
            _check_ids(tokens, bin_path, position=position, vocabulary_size=vocabulary_size)
            ends.look_at(tokens, position)
            position += tokens.size
            on_read(len(piece))
    entry = ShardEntry(
        name=str(shard.prefix),
        documents=shard.num_documents,
        tokens=shard.num_tokens,
        sha256_bin=digest.hexdigest(),
        sha256_idx=hash_file(idx_path, on_read=on_read),
        source=str(shard.prefix),
    )
    return AdoptedShard(entry, ends.num_ended, ends.num_without_end)


def _check_ids(tokens: npt.NDArray[np.integer], path: Path, *, position: int, vocabulary_size: int) -> None:
    if tokens.min() >= 0 and tokens.max() < vocabulary_size:
        return
    wrong = int(np.argmax((tokens < 0) | (tokens >= vocabulary_size)))
    raise CorpusError(
        f"{path} has the id {tokens[wrong]} (token {position + wrong:,} of the file, counted from 0), outside the "
        f"vocabulary of {vocabulary_size:,} ids. Give the tokenizer that the pair was made with (--tokenizer)."
    )


class _Ends:
    """Counts the documents that end with the end-of-document token, as the tokens go by."""

    def __init__(self, shard: Shard, eod_id: int | None) -> None:
        self._eod_id, self._blocks = eod_id, _document_ends(shard)
        self._next = np.empty(0, np.int64)
        self.num_ended = self.num_without_end = 0

    def look_at(self, tokens: npt.NDArray[np.integer], position: int) -> None:
        """The next tokens of the file; the first of them is at `position`."""
        while True:
            count = int(np.searchsorted(self._next, position + tokens.size, side="right"))
            last_tokens = tokens[self._next[:count] - 1 - position]
            self.num_ended += count
            if self._eod_id is not None:
                self.num_without_end += int(np.count_nonzero(last_tokens != self._eod_id))
            self._next = self._next[count:]
            if self._next.size or (block := next(self._blocks, None)) is None:
                return
            self._next = block


def _document_ends(shard: Shard) -> Iterator[npt.NDArray[np.int64]]:
    """Where documents end that are not empty, in tokens, some at a time."""
    end = 0
    for start in range(0, shard.num_documents, _DOCUMENTS_AT_ONCE):
        lengths = shard.lengths[start : start + _DOCUMENTS_AT_ONCE].astype(np.int64)
        ends = end + np.cumsum(lengths)
        end = int(ends[-1])
        yield ends[lengths > 0]
