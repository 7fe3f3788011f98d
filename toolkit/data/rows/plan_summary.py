"""Summary of packing plans: a file with the numbers of rows, pieces and tokens of every shard's plan.

Without it, opening a corpus of tens of thousands of shards reads the header of every plan. It only copies data of the
plans: it is rebuilt whenever it is missing, damaged or of another manifest.

    header   its key: magic, version of the packing, S, min_length, shards N, hash of the manifest
    body     int64 (3, N): rows, pieces and tokens of each plan
    digest   BLAKE2b of 32 bytes over both
"""

import hashlib
import os
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from toolkit.core.files import atomic_write
from toolkit.data.rows.plan import ALGORITHM_VERSION, PlanSizes

_MAGIC = b"ETKROWS\x00"
_FIELDS = struct.Struct("<8s4Q32s")
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class SummaryKey:
    """Inputs that a summary depends on."""

    manifest_sha256: str
    num_shards: int
    sequence_length: int
    min_length: int

    @property
    def file_name(self) -> str:
        """Name of the summary's file."""
        version = f"S{self.sequence_length}-m{self.min_length}-v{ALGORITHM_VERSION}"
        return f"plans-{version}-{self.manifest_sha256[:16]}"

    @property
    def num_bytes(self) -> int:
        """Size of the summary's file, in bytes."""
        return _FIELDS.size + 3 * 8 * self.num_shards + _DIGEST_BYTES

    @property
    def header(self) -> bytes:
        """First bytes of the file."""
        numbers = (ALGORITHM_VERSION, self.sequence_length, self.min_length, self.num_shards)
        return _FIELDS.pack(_MAGIC, *numbers, bytes.fromhex(self.manifest_sha256))


@dataclass(frozen=True)
class PlanTable:
    """Rows, pieces and tokens of the plan of each shard, each int64 (number of shards,)."""

    num_rows: npt.NDArray[np.int64]
    num_pieces: npt.NDArray[np.int64]
    num_tokens: npt.NDArray[np.int64]

    @classmethod
    def of(cls, sizes: Sequence[PlanSizes]) -> Self:
        """The table for the sizes of each plan."""
        return cls(*np.array([astuple(one) for one in sizes], np.int64).reshape(-1, 3).T)

    def sizes(self, number: int) -> PlanSizes:
        """Sizes of one plan."""
        return PlanSizes(int(self.num_rows[number]), int(self.num_pieces[number]), int(self.num_tokens[number]))


def write_summary(path: Path, key: SummaryKey, table: PlanTable) -> None:
    """Write a summary to `path`, atomically; an OSError leaves no file."""
    content = key.header + np.stack([table.num_rows, table.num_pieces, table.num_tokens]).astype("<i8").tobytes()
    atomic_write(path, content + _digest(content))


def read_summary(path: Path, key: SummaryKey) -> PlanTable | None:
    """The summary; None if it is absent, has another key, or is damaged."""
    try:
        with path.open("rb") as file:
            content = file.read(key.num_bytes + 1)
    except OSError:
        return None
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if len(content) != key.num_bytes or not body.startswith(key.header) or _digest(body) != digest:
        return None
    return PlanTable(*np.frombuffer(body, "<i8", offset=_FIELDS.size).astype(np.int64).reshape(3, -1))


def is_summary_whole(path: Path) -> bool:
    """True if a summary has the length in its header and ends with the digest of its content, whatever its key."""
    with path.open("rb") as file:
        header = file.read(_FIELDS.size)
        if len(header) < _FIELDS.size:
            return False
        num_bytes = _FIELDS.size + 24 * _FIELDS.unpack(header)[4] + _DIGEST_BYTES
        if os.fstat(file.fileno()).st_size != num_bytes:
            return False
        content = header + file.read()
    return _digest(content[:-_DIGEST_BYTES]) == content[-_DIGEST_BYTES:]


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
