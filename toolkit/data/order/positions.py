"""Where a sample position is: the row and epoch of a corpus, and the corpus of a blend, in O(1) time and memory.

A permutation of n numbers is a Feistel network over pairs (a, b) of digits to a base just above the square root of n,
applied again while its result is n or more (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", section
5: generalised Feistel, cycle walking). Every epoch has its own keys, hence its own permutation, and there is no index
array.

In a blend, positions come in blocks of B. Before block b, corpus c has had its exact share of b * B positions, rounded
to a whole number so that all shares add up (largest remainder, Hamilton's method); so after any number of blocks every
corpus is less than one row away from its share, however long the run. Where the weights have a small common
denominator, B is a multiple of it and all blocks are alike. Which places of a block belong to which corpus is a keyed
permutation of the block, so the mix has no period. All counts are whole numbers of Python: nothing rounds at 10^13
positions.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

from toolkit.core.draws import Keys, hash_numbers, keyed_uint64

_NUM_ROUNDS = 8
# For `blocks`: rows that are read from one place, and how many such places are mixed at a time.
_ROWS_PER_BLOCK = 1024
_BLOCKS_PER_WINDOW = 64
# Short blocks of a blend keep every stretch of a run close to its shares; long enough that places in a block are not
# guessed.
_FEWEST_ROWS = 64
_MOST_ROWS_ALIKE = 4096

Numbers = npt.NDArray[np.int64]


class Order:
    """Which row comes at which position. Position p is in epoch p // num_rows; every epoch has every row once.

    Args:
        num_rows: rows in an epoch, at least 1.
        seed: the run's seed.
        shuffle: `global` permutes all rows. `blocks` permutes blocks of 1,024 neighbouring rows, then the rows inside
            each window of 64 blocks, so that reading stays near a few places for a while; rows after the last whole
            block come in the last window.
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
        # The last window also takes what does not fill a window of its own.
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
    """Which corpus a sample position reads, and which of that corpus's own positions.

    A corpus's own positions are used once each, 0 first; inside a block they may change places.

    Args:
        weights: share of each corpus relative to the others, positive; 0.1 means one tenth, not its nearest binary
            fraction.
        seed: the run's seed.

    Attributes:
        shares: exact share of each corpus; they add up to 1.
        block_rows: B, rows in a block.
    """

    def __init__(self, weights: Sequence[float], *, seed: int) -> None:
        assert weights, "a blend needs a corpus"
        exact = [Fraction(str(weight)) for weight in weights]
        self.shares = tuple(weight / sum(exact) for weight in exact)
        denominator = math.lcm(*(share.denominator for share in self.shares))
        if denominator <= _MOST_ROWS_ALIKE:
            self.block_rows = denominator * -(-_FEWEST_ROWS // denominator)
        else:
            # At least one row of each corpus in a block, or rounding could take one back.
            self.block_rows = max(_MOST_ROWS_ALIKE, math.ceil(1 / min(self.shares)))
        self._denominator = denominator
        self._numerators = [int(share * denominator) for share in self.shares]
        self._key = np.uint64(keyed_uint64(seed, "blend"))

    def locate(self, sample_indices_B: Numbers) -> tuple[Numbers, Numbers]:
        """Number of the corpus and position in it, both int64 (B,), for these positions over the whole run."""
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
    """Apply the permutation of 0..size-1 that belongs to each value's key; O(1) for each, without a table."""
    result_B = values_B.astype(np.uint64)
    base = np.uint64(math.isqrt(max(size, 1) - 1) + 1)
    walking = np.arange(values_B.size)
    while walking.size:
        result_B[walking] = _feistel(result_B[walking], base, keys_B=keys_B[walking])
        walking = walking[result_B[walking] >= size]
    return result_B.astype(np.int64)


def _feistel(values_B: Keys, base: np.uint64, *, keys_B: Keys) -> Keys:
    """A permutation of 0..base^2-1: each round adds a hash of one digit to the other, and they change places."""
    left_B, right_B = np.divmod(values_B, base)
    for round_number in range(_NUM_ROUNDS):
        mixed_B = hash_numbers(keys_B + np.uint64(round_number), right_B)
        left_B, right_B = right_B, (left_B + mixed_B % base) % base
    result_B: Keys = left_B * base + right_B
    return result_B
