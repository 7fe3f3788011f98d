"""The packing plan of one shard: a file that lists the pieces of documents in each row.

    header       its key, its sizes, a hash of the rest and a hash of itself
    firsts       int64 (P,): position of each piece's first token in the shard, rows one after the other
    lengths      int32 (P,): number of tokens of each piece
    row_starts   int64 (R + 1,): row r has the pieces row_starts[r] .. row_starts[r + 1] - 1

All little-endian. It is written from the index of the shard, in memory that does not grow with the shard, and read
through memory maps.
"""

import hashlib
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from toolkit.core.files import atomic_file
from toolkit.data.corpus.shard_index import Lengths
from toolkit.data.rows.packing import PackedRows, count_pieces, iterate_pieces, pack

ALGORITHM_VERSION = 1
"""Incremented whenever the same documents would be packed differently, so old plans are not mistaken for new ones."""

_Number = TypeVar("_Number", int, npt.NDArray[np.int64])

_MAGIC = b"ETKPLAN\x00"
_FIELDS = struct.Struct("<8s6Q32s32s")
_HEADER_BYTES = _FIELDS.size + 16
_BODY_DIGEST_BYTES = 32
# Pieces packed together: enough that half-empty last rows do not matter, few enough to fit in 50 MB.
_MOST_PIECES_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class PlanKey:
    """Inputs that a plan depends on: documents (through the hash of the shard's index), S, shortest piece."""

    sha256_idx: str
    sequence_length: int
    min_length: int

    def file_name(self, shard_name: str) -> str:
        """Name of the plan's file."""
        return (
            f"{shard_name}.plan-S{self.sequence_length}-m{self.min_length}-v{ALGORITHM_VERSION}-{self.sha256_idx[:16]}"
        )


@dataclass(frozen=True)
class PlanSizes:
    """Sizes from the header: numbers of rows, of their pieces and of their tokens."""

    num_rows: int
    num_pieces: int
    num_tokens: int

    @property
    def num_bytes(self) -> int:
        """Size of the file, in bytes."""
        return plan_bytes(self.num_rows, self.num_pieces)


def plan_bytes(num_rows: _Number, num_pieces: _Number) -> _Number:
    """Size of a plan's file in bytes, or of each of many."""
    return _starts_offset(num_pieces) + 8 * (num_rows + 1)


def write_plan(path: Path, key: PlanKey, *, document_lengths: Lengths) -> PlanSizes:
    """Pack the documents of a shard and write the plan to `path`, atomically; an OSError leaves no file."""
    with atomic_file(path) as file:
        sizes = _write_body(file, key, document_lengths)
        file.seek(_HEADER_BYTES)
        fields = _pack_fields(key, sizes, hashlib.file_digest(file, _body_hash).digest())
        file.seek(0)
        file.write(fields + _header_digest(fields))
    return sizes


def read_sizes(path: str | Path, key: PlanKey, *, folder: int | None = None) -> PlanSizes | None:
    """The sizes in the header; None if the plan is absent, has another key, or has the wrong length.

    `path` is relative to `folder`, the descriptor of an open folder, if that is given.
    """
    opened = _read_header(path, key, folder)
    return opened[0] if opened else None


def is_intact(path: Path, key: PlanKey) -> bool:
    """True if the plan exists and its content has the hash in its header; reads all of it once."""
    opened = _read_header(path, key, None)
    return opened is not None and _body_digest(path) == opened[1]


def is_whole(path: Path) -> bool:
    """True if a plan's content has the hash in its own header, whatever its key; reads all of it once."""
    with path.open("rb") as file:
        fields = _checked_fields(file.read(_HEADER_BYTES))
    return fields is not None and _body_digest(path) == fields[-_BODY_DIGEST_BYTES:]


def map_plan(path: Path, sizes: PlanSizes) -> PackedRows:
    """Map the rows of an intact plan into memory."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), sizes.num_bytes, access=mmap.ACCESS_READ)
    return PackedRows(
        np.frombuffer(mapped, "<i8", sizes.num_pieces, _HEADER_BYTES),
        np.frombuffer(mapped, "<i4", sizes.num_pieces, _HEADER_BYTES + 8 * sizes.num_pieces),
        np.frombuffer(mapped, "<i8", sizes.num_rows + 1, _starts_offset(sizes.num_pieces)),
    )


def _body_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(_HEADER_BYTES)
        return hashlib.file_digest(file, _body_hash).digest()


def _starts_offset(num_pieces: _Number) -> _Number:
    """Byte offset of row_starts in the file, aligned to 8."""
    return _HEADER_BYTES + -(-12 * num_pieces // 8) * 8


def _write_body(file: BinaryIO, key: PlanKey, document_lengths: Lengths) -> PlanSizes:
    cutting = {"sequence_length": key.sequence_length, "min_length": key.min_length}
    num_pieces = count_pieces(document_lengths, **cutting)
    # Equal blocks: a small last one would pack badly.
    num_blocks = max(1, -(-num_pieces // _MOST_PIECES_AT_ONCE))
    block = max(1, -(-num_pieces // num_blocks))
    starts = _starts_offset(num_pieces)
    file.seek(starts)
    file.write(bytes(8))
    num_rows = num_tokens = done = 0
    for pieces in iterate_pieces(document_lengths, block=block, **cutting):
        packed = pack(pieces, sequence_length=key.sequence_length)
        for array, start, width in (
            (packed.firsts.astype("<i8"), 0, 8),
            (packed.lengths.astype("<i4"), 8 * num_pieces, 4),
        ):
            file.seek(_HEADER_BYTES + start + width * done)
            file.write(array.data)
        file.seek(starts + 8 * (num_rows + 1))
        file.write((packed.row_starts[1:] + done).astype("<i8").data)
        num_rows += packed.row_starts.size - 1
        num_tokens += int(pieces.lengths.sum())
        done += pieces.firsts.size
    return PlanSizes(num_rows, num_pieces, num_tokens)


def _read_header(path: str | Path, key: PlanKey, folder: int | None) -> tuple[PlanSizes, bytes] | None:
    try:
        # Bare system calls: a large corpus has tens of thousands of plans, and all headers are read at the start.
        descriptor = os.open(path, os.O_RDONLY, dir_fd=folder)
    except OSError:
        return None
    try:
        header, file_size = os.pread(descriptor, _HEADER_BYTES, 0), os.fstat(descriptor).st_size
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if (fields := _checked_fields(header)) is None:
        return None
    *_, num_rows, num_pieces, num_tokens, _, body_digest = _FIELDS.unpack(fields)
    sizes = PlanSizes(num_rows, num_pieces, num_tokens)
    is_ours = fields == _pack_fields(key, sizes, body_digest) and file_size == sizes.num_bytes
    return (sizes, body_digest) if is_ours else None


def _checked_fields(header: bytes) -> bytes | None:
    """The fields of a header; None if it is truncated or damaged."""
    fields = header[: _FIELDS.size]
    return fields if header[_FIELDS.size :] == _header_digest(fields) else None


def _pack_fields(key: PlanKey, sizes: PlanSizes, body_digest: bytes) -> bytes:
    return _FIELDS.pack(
        _MAGIC,
        ALGORITHM_VERSION,
        key.sequence_length,
        key.min_length,
        sizes.num_rows,
        sizes.num_pieces,
        sizes.num_tokens,
        bytes.fromhex(key.sha256_idx),
        body_digest,
    )


def _header_digest(fields: bytes) -> bytes:
    return hashlib.blake2b(fields, digest_size=16).digest()


def _body_hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_BODY_DIGEST_BYTES)
