"""The digest of a run's data: one short value that two runs share only if they saw the same rows in the same order."""

import hashlib

import numpy as np
import numpy.typing as npt

from toolkit.core.types import IntArray

DIGEST_START = bytes(16)
"""The digest before the first step."""

_ROW_HASH_BYTES = 8


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
