"""The order of rows: sample position -> corpus of a blend, epoch and row, in O(1) time and memory; and their digest.

A permutation of n numbers is a Feistel network over pairs (a, b) of digits in a base just above the square root of n,
reapplied while its result is n or more (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", section 5:
generalized Feistel, cycle walking). Every epoch has its own keys, hence its own permutation, and there is no index
array.

In a blend, positions are divided into blocks. At the start of each block, every corpus has received its exact share of
the positions so far, rounded to an integer so that the counts add up (largest remainder, Hamilton's method); so after
any number of blocks every corpus is less than one row away from its share, however long the run. If the weights have a
small common denominator, the block length is a multiple of it and all blocks have equal counts. A keyed permutation of
the block assigns its positions to corpora, so the mix has no period. All counts are Python integers: nothing is rounded
at 10^13 positions.

The digest is one short value that two runs share only if they saw the same rows in the same order.

Shapes: U distinct blocks, C corpora of a blend; other letters as in `toolkit.core.types`.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from toolkit.core.draws import Keys, hash_numbers, keyed_uint64
from toolkit.core.types import IntArray
from toolkit.data.rows.windows import Numbers, Rows, TokenRows

DIGEST_START = bytes(16)
"""The digest before the first step."""

_NUM_ROUNDS = 8
# For `blocks`: rows that are read from one place, and the number of such places that are shuffled together.
_ROWS_PER_BLOCK = 1024
_BLOCKS_PER_WINDOW = 64
# Short blocks of a blend keep every stretch of a run close to its shares; long enough that positions in a block are not
# predictable.
_FEWEST_ROWS = 64
_MOST_ROWS_ALIKE = 4096
# Locating a few positions costs as much as this many, and a rank asks for neighbors. Only speed depends on it.
_GROUP = 64
_GROUPS_KEPT = 16
_ROW_HASH_BYTES = 8


class Order:
    """Permutation of rows over positions. Position p is in epoch p // num_rows; every epoch has every row once.

    Args:
        shuffle: `global` permutes all rows. `blocks` permutes blocks of 1,024 consecutive rows, then the rows inside
            each window of 64 blocks, so that reading stays near a few places for a while; rows after the last whole
            block are in the last window.
    """

    def __init__(self, num_rows: int, *, seed: int, shuffle: Literal["global", "blocks"]) -> None:
        assert num_rows > 0
        self.num_rows = num_rows
        self._shuffle = shuffle
        self._rows_key = np.uint64(keyed_uint64(seed, "order", shuffle, "rows"))
        self._blocks_key = np.uint64(keyed_uint64(seed, "order", shuffle, "blocks"))

    def locate(self, sample_indices_B: Numbers) -> tuple[Numbers, Numbers]:
        """Rows and epochs, both int64 (B,), of these positions, counted from 0 over the whole run."""
        epochs_B, indices_B = np.divmod(sample_indices_B.astype(np.int64), self.num_rows)
        if self._shuffle == "global":
            return permute(indices_B, self.num_rows, keys_B=hash_numbers(self._rows_key, epochs_B)), epochs_B
        return self._in_blocks(indices_B, epochs_B), epochs_B

    def _in_blocks(self, indices_B: Numbers, epochs_B: Numbers) -> Numbers:
        window_rows = _ROWS_PER_BLOCK * _BLOCKS_PER_WINDOW
        num_blocks = self.num_rows // _ROWS_PER_BLOCK
        # The last window also takes the blocks and rows that do not fill a window of their own.
        num_windows = max(1, num_blocks // _BLOCKS_PER_WINDOW)
        windows_B = np.minimum(indices_B // window_rows, num_windows - 1)
        within_B = indices_B - windows_B * window_rows
        keys_B = hash_numbers(hash_numbers(self._rows_key, epochs_B), windows_B)
        shuffled_B = np.empty_like(within_B)
        is_last_B = windows_B == num_windows - 1
        for chosen, size in (
            (~is_last_B, window_rows),
            (is_last_B, self.num_rows - (num_windows - 1) * window_rows),
        ):
            shuffled_B[chosen] = permute(within_B[chosen], size, keys_B=keys_B[chosen])
        slots_B, offsets_B = np.divmod(windows_B * window_rows + shuffled_B, _ROWS_PER_BLOCK)
        is_whole_B = slots_B < num_blocks  # the short block at the end keeps its place
        block_keys_B = hash_numbers(self._blocks_key, epochs_B[is_whole_B])
        slots_B[is_whole_B] = permute(slots_B[is_whole_B], num_blocks, keys_B=block_keys_B)
        rows_B: Numbers = slots_B * _ROWS_PER_BLOCK + offsets_B
        return rows_B


class Blend:
    """Map from a sample position to a corpus and that corpus's own position.

    A corpus's own positions are used once each, from 0 on, reordered only within a block. Weights are positive and
    relative to one another; 0.1 means one tenth, not its nearest binary fraction. `shares` are exact and add up to 1.
    """

    def __init__(self, weights: Sequence[float], *, seed: int) -> None:
        assert weights, "a blend needs a corpus"
        exact = [Fraction(str(weight)) for weight in weights]
        self.shares = tuple(weight / sum(exact) for weight in exact)
        denominator = math.lcm(*(share.denominator for share in self.shares))
        if denominator <= _MOST_ROWS_ALIKE:
            self.block_rows = denominator * -(-_FEWEST_ROWS // denominator)
        else:
            # At least one row of each corpus in a block, or rounding could make its count decrease.
            self.block_rows = max(_MOST_ROWS_ALIKE, math.ceil(1 / min(self.shares)))
        self._denominator = denominator
        self._numerators = [int(share * denominator) for share in self.shares]
        self._key = np.uint64(keyed_uint64(seed, "blend"))

    def locate(self, sample_indices_B: Numbers) -> tuple[Numbers, Numbers]:
        """Index of the corpus and position in it, both int64 (B,), for these positions over the whole run."""
        blocks_B, places_B = np.divmod(sample_indices_B.astype(np.int64), self.block_rows)
        slots_B = permute(places_B, self.block_rows, keys_B=hash_numbers(self._key, blocks_B))
        blocks_U, which_B = np.unique(blocks_B, return_inverse=True)
        before_UC, after_UC = self._table(blocks_U), self._table(blocks_U + 1)
        # A block's slots belong to the first corpus, then to the second, and so on.
        ends_UC = np.cumsum(after_UC - before_UC, axis=1)
        starts_UC = ends_UC - (after_UC - before_UC)
        corpora_B = (slots_B[:, None] >= ends_UC[which_B]).sum(axis=1)
        return corpora_B, slots_B + (before_UC - starts_UC)[which_B, corpora_B]

    def counts(self, num_blocks: int) -> list[int]:
        """Rows of each corpus in the first `num_blocks` blocks: their shares, rounded by largest remainder."""
        rows = num_blocks * self.block_rows
        parts = [divmod(rows * numerator, self._denominator) for numerator in self._numerators]
        counts = [whole for whole, _ in parts]
        by_remainder = sorted(range(len(parts)), key=lambda number: -parts[number][1])
        for number in by_remainder[: rows - sum(counts)]:
            counts[number] += 1
        return counts

    def _table(self, blocks_U: Numbers) -> Numbers:
        return np.array([self.counts(block) for block in blocks_U.tolist()], np.int64).reshape(-1, len(self.shares))


def permute(values_B: Numbers, size: int, *, keys_B: Keys) -> Numbers:
    """Apply to each value the permutation of 0..size-1 that belongs to its key; O(1) each, without a table."""
    result_B = values_B.astype(np.uint64)
    base = np.uint64(math.isqrt(max(size, 1) - 1) + 1)
    walking = np.arange(values_B.size)
    while walking.size:
        result_B[walking] = _feistel(result_B[walking], base, keys_B=keys_B[walking])
        walking = walking[result_B[walking] >= size]
    return result_B.astype(np.int64)


def _feistel(values_B: Keys, base: np.uint64, *, keys_B: Keys) -> Keys:
    """A permutation of 0..base^2-1: each round adds a hash of one digit to the other, and swaps them."""
    left_B, right_B = np.divmod(values_B, base)
    for round_number in range(_NUM_ROUNDS):
        mixed_B = hash_numbers(keys_B + np.uint64(round_number), right_B)
        left_B, right_B = right_B, (left_B + mixed_B % base) % base
    result_B: Keys = left_B * base + right_B
    return result_B


@dataclass(frozen=True)
class Located:
    """Rows at B sample positions: index of the corpus, row in it, and that corpus's own epoch; each (B,)."""

    corpora_B: Numbers
    rows_B: Numbers
    epochs_B: Numbers


class RowStream:
    """The rows of a run, in order. It has no state: position p gives the same row for every caller, at any time."""

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
        """The rows at these sample positions, counted from 0 over the whole run."""
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
        """Corpus, row and epoch at these sample positions."""
        if sample_indices_B.size >= _GROUP:
            return self._locate(sample_indices_B)
        groups_B, places_B = np.divmod(sample_indices_B.astype(np.int64), _GROUP)
        found_3B = np.empty((3, sample_indices_B.size), np.int64)
        for group in np.unique(groups_B).tolist():
            chosen = groups_B == group
            found_3B[:, chosen] = self._group(group)[:, places_B[chosen]]
        return Located(*found_3B)

    def _locate_group(self, group: int) -> Numbers:
        """Corpus, row and epoch at a group of consecutive positions, (3, GROUP)."""
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
    """Hashes of rows before any objective is applied; uint8 (B, 8).

    blake2b of 8 bytes over a row's tokens, then its segment ids, as little-endian int32.
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
