"""What training reads from: sample positions in, rows of tokens out; and the digest of the rows that were read.

The digest is one short value that two runs share only if they saw the same rows in the same order.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from toolkit.core.types import IntArray
from toolkit.data.order.positions import Blend, Numbers, Order
from toolkit.data.rows.windows import Rows, TokenRows

DIGEST_START = bytes(16)
"""The digest before the first step."""
_ROW_HASH_BYTES = 8
# A few positions cost as much to locate as these, and a rank asks for neighbours. Nothing but time depends on it.
_GROUP = 64
_GROUPS_KEPT = 16


@dataclass(frozen=True)
class Located:
    """Where the rows at B sample positions are: number of the corpus, row in it, that corpus's own epoch; each (B,)."""

    corpora_B: Numbers
    rows_B: Numbers
    epochs_B: Numbers


class RowStream:
    """The rows of a run, in order. It has no state: position p gives the same row whoever asks, and when.

    Args:
        rows: of the one corpus.
        order: in which they come.
    """

    def __init__(self, rows: Rows, order: Order) -> None:
        assert rows.num_rows == order.num_rows
        self._parts: tuple[tuple[Rows, Order], ...] = ((rows, order),)
        self._blend: Blend | None = None
        self._group = lru_cache(maxsize=_GROUPS_KEPT)(self._locate_group)

    @classmethod
    def of_blend(cls, parts: Sequence[tuple[Rows, Order]], blend: Blend) -> Self:
        """The rows of several corpora, each in its own order and with its own epochs, mixed by `blend`."""
        assert len(parts) == len(blend.shares)
        stream = cls(*parts[0])
        # A blend of one corpus is that corpus.
        if len(parts) > 1:
            stream._parts, stream._blend = tuple(parts), blend
        return stream

    @property
    def sequence_length(self) -> int:
        """S, positions in a row."""
        return self._parts[0][0].sequence_length

    def at(self, sample_indices_B: Numbers) -> TokenRows:
        """The rows at these sample positions, counted from 0 over the whole run.

        Raises:
            CorpusError: a file turns out to be damaged.
        """
        located = self.locate(sample_indices_B)
        if self._blend is None:
            return self._parts[0][0].read(located.rows_B, located.epochs_B)
        shape = (sample_indices_B.size, self.sequence_length)
        found = TokenRows(np.empty(shape, np.int32), np.empty(shape, np.int32))
        for number in np.unique(located.corpora_B).tolist():
            chosen = located.corpora_B == number
            some = self._parts[number][0].read(located.rows_B[chosen], located.epochs_B[chosen])
            found.tokens_BS[chosen], found.segments_BS[chosen] = some.tokens_BS, some.segments_BS
        return found

    def locate(self, sample_indices_B: Numbers) -> Located:
        """Where the rows at these sample positions are."""
        if sample_indices_B.size >= _GROUP:
            return self._locate(sample_indices_B)
        groups_B, places_B = np.divmod(sample_indices_B.astype(np.int64), _GROUP)
        found_3B = np.empty((3, sample_indices_B.size), np.int64)
        for group in np.unique(groups_B).tolist():
            chosen = groups_B == group
            found_3B[:, chosen] = self._group(group)[:, places_B[chosen]]
        return Located(*found_3B)

    def _locate_group(self, group: int) -> Numbers:
        """Corpus, row and epoch, (3, GROUP), at neighbouring positions."""
        located = self._locate(np.arange(group * _GROUP, (group + 1) * _GROUP))
        return np.stack([located.corpora_B, located.rows_B, located.epochs_B])

    def _locate(self, sample_indices_B: Numbers) -> Located:
        if self._blend is None:
            return Located(np.zeros(sample_indices_B.size, np.int64), *self._parts[0][1].locate(sample_indices_B))
        corpora_B, own_B = self._blend.locate(sample_indices_B)
        rows_B, epochs_B = np.empty_like(own_B), np.empty_like(own_B)
        for number in np.unique(corpora_B).tolist():
            chosen = corpora_B == number
            rows_B[chosen], epochs_B[chosen] = self._parts[number][1].locate(own_B[chosen])
        return Located(corpora_B, rows_B, epochs_B)


def row_hashes(tokens_BS: IntArray, segments_BS: IntArray) -> npt.NDArray[np.uint8]:
    """Hash rows as they are before any objective; uint8 (B, 8).

    blake2b of 8 bytes over the tokens, then the segment ids, of a row as little-endian int32.
    """
    rows = zip(np.ascontiguousarray(tokens_BS, "<i4"), np.ascontiguousarray(segments_BS, "<i4"), strict=True)
    hashes = bytearray()
    for tokens_S, segments_S in rows:
        row_hash = hashlib.blake2b(tokens_S.data, digest_size=_ROW_HASH_BYTES)
        row_hash.update(segments_S.data)
        hashes += row_hash.digest()
    return np.frombuffer(hashes, np.uint8).reshape(-1, _ROW_HASH_BYTES)


def advance_digest(digest: bytes, hashes_G8: npt.NDArray[np.uint8]) -> bytes:
    """The digest after a step with these row hashes, in the order of the global batch; 16 bytes."""
    return hashlib.blake2b(digest + np.ascontiguousarray(hashes_G8).tobytes(), digest_size=16).digest()
