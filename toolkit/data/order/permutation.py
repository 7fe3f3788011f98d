"""The order of rows: sample position -> row and epoch, in O(1) time and memory, without an index array.

A permutation of n numbers is a Feistel network over pairs (a, b) of digits to a base just above the square root of n,
applied again while its result is n or more (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", section
5: generalised Feistel, cycle walking). Every epoch has its own keys, hence its own permutation.
"""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from toolkit.core.draws import Keys, hash_numbers, keyed_uint64

_NUM_ROUNDS = 8
# For `blocks`: rows that are read from one place, and how many such places are mixed at a time.
_ROWS_PER_BLOCK = 1024
_BLOCKS_PER_WINDOW = 64

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
