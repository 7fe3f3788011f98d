"""Keyed hashes of arrays of numbers, for everything that must look random and be the same everywhere."""

import numpy as np
import numpy.typing as npt

from toolkit.core.draws import mix64

Keys = npt.NDArray[np.uint64]

# The increment of SplitMix64 (Steele, Lea, Flood 2014, section 3): sends neighbouring numbers far apart.
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def hash_numbers(key: np.uint64 | Keys, numbers: npt.NDArray[np.integer]) -> Keys:
    """64 bits for each number under a key, or under one key each. Different numbers never collide under one key."""
    return mix64(numbers.astype(np.uint64) * _GOLDEN_GAMMA + key)
