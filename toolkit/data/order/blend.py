"""A blend of corpora: sample position -> corpus and position in that corpus, in O(1) and without drift.

Positions come in blocks of B. Before block b, corpus c has had its exact share of b * B positions, rounded to a whole
number so that all shares add up (largest remainder, Hamilton's method); so after any number of blocks every corpus is
less than one row away from its share, however long the run. Where the weights have a small common denominator, B is a
multiple of it and all blocks are alike. Which places of a block belong to which corpus is a keyed permutation of the
block, so the mix has no period. All counts are whole numbers of Python: nothing rounds at 10^13 positions.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from toolkit.core.draws import hash_numbers, keyed_uint64
from toolkit.data.order.permutation import permute

# Short blocks keep every stretch of a run close to its shares; long enough that places in a block are not guessed.
_FEWEST_ROWS = 64
_MOST_ROWS_ALIKE = 4096

Numbers = npt.NDArray[np.int64]


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
