"""Random numbers per sample, from a counter-based hash instead of a stateful generator.

A number depends only on (seed, stream, sample position, column), so masks do not change with the rank, the worker,
the micro-batch, the topology or a restart; the first and last pipeline stages draw the same numbers without
communicating.

A 64-bit key per (seed, stream, sample) comes from the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast
splittable pseudorandom number generators", section 3). The columns of a row are then hashed in 32-bit lanes, which
processors multiply several times faster than 64-bit ones: the two rounds of the `lowbias32` hash (C. Wellons, "Hash
Prospector"), with one half of the key mixed in before the first round and the other between the two, so that no row
is a shifted copy of another.
"""

import hashlib

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

# The increment of SplitMix64: spreads neighboring numbers far apart.
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_GOLDEN_GAMMA_32 = np.uint32(0x9E3779B9)
_TWO_TO_MINUS_24 = np.float32(2.0**-24)


def mix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit integers, elementwise; a bijection."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def hash_numbers(key: np.uint64 | Keys, numbers: npt.NDArray[np.integer]) -> Keys:
    """64-bit hash of each number under one key, or each under its own. Distinct numbers never collide under one key."""
    return mix64(numbers.astype(np.uint64) * _GOLDEN_GAMMA + key)


def keyed_uint64(*parts: int | str) -> int:
    """A 64-bit key from a sequence of integers and words; ("ab", 1) and ("a", "b1") differ."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Draws:
    """Random numbers for a micro-batch of rows, from their global sample positions, (B,); `num_columns` is S."""

    def __init__(self, seed: int, positions_B: npt.NDArray[np.integer], *, num_columns: int) -> None:
        self._seed = seed
        self._positions_B = positions_B.astype(np.uint64)
        self._num_columns = num_columns

    def uniform_BS(self, stream: str) -> npt.NDArray[np.float32]:
        """Uniform float32 in [0, 1), shape (B, S), 24 random bits each. `stream` names their purpose."""
        key = np.uint64(keyed_uint64(self._seed, stream))
        keys_B = hash_numbers(key, self._positions_B)
        first_B, second_B = (keys_B >> np.uint64(32)).astype(np.uint32), keys_B.astype(np.uint32)
        columns_S = np.arange(1, self._num_columns + 1, dtype=np.uint32) * _GOLDEN_GAMMA_32
        bits_BS = first_B[:, None] ^ columns_S[None, :]
        # In place, with one scratch array: allocation costs more than arithmetic here.
        scratch_BS = np.empty_like(bits_BS)
        bits_BS ^= np.right_shift(bits_BS, np.uint32(16), out=scratch_BS)
        bits_BS *= np.uint32(0x7FEB352D)
        bits_BS += second_B[:, None]
        bits_BS ^= np.right_shift(bits_BS, np.uint32(15), out=scratch_BS)
        bits_BS *= np.uint32(0x846CA68B)
        bits_BS ^= np.right_shift(bits_BS, np.uint32(16), out=scratch_BS)
        bits_BS >>= np.uint32(8)
        # 24 bits fit a signed integer, and only signed ones convert to float32 in one instruction.
        uniform_BS = bits_BS.view(np.int32).astype(np.float32)
        uniform_BS *= _TWO_TO_MINUS_24
        return uniform_BS
