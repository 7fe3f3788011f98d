"""Read what each contender wrote, with readers written from the published layouts, and compare it by document."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_DTYPES = {4: np.int32, 8: np.uint16}


@dataclass(frozen=True)
class Documents:
    """Ids of all documents one after the other, and the length of each."""

    ids: npt.NDArray[np.integer]
    lengths: npt.NDArray[np.int64]


def read_megatron_pair(prefix: Path) -> Documents:
    """An .idx (magic, version, dtype, counts, lengths, byte offsets, document bounds) and the .bin beside it."""
    index = prefix.with_name(prefix.name + ".idx").read_bytes()
    version, dtype_code, num_sequences, num_bounds = struct.unpack_from("<QBQQ", index, len(MEGATRON_MAGIC))
    if not index.startswith(MEGATRON_MAGIC) or version != 1:
        raise SystemExit(f"{prefix}.idx is no Megatron index.")
    dtype = np.dtype(MEGATRON_DTYPES[dtype_code])
    at = len(MEGATRON_MAGIC) + struct.calcsize("<QBQQ")
    lengths = np.frombuffer(index, "<i4", num_sequences, at).astype(np.int64)
    offsets = np.frombuffer(index, "<i8", num_sequences, at + 4 * num_sequences)
    bounds = np.frombuffer(index, "<i8", num_bounds, at + 12 * num_sequences)
    if not np.array_equal(offsets, (np.cumsum(lengths) - lengths) * dtype.itemsize):
        raise SystemExit(f"{prefix}.idx has sequences that do not follow one another.")
    if not np.array_equal(bounds, np.arange(num_sequences + 1)):
        raise SystemExit(f"{prefix}.idx has documents of more than one sequence.")
    return Documents(np.fromfile(prefix.with_name(prefix.name + ".bin"), dtype), lengths)


def read_corpus(folder: Path) -> Documents:
    """A corpus of `toolkit preprocess`: the shards that corpus.json names, in its order."""
    shards = json.loads((folder / "corpus.json").read_text())["shards"]
    return _joined([read_megatron_pair(folder / shard["name"]) for shard in shards])


def read_datatrove(folder: Path) -> Documents:
    """The .ds files (ids, 4 bytes each where the vocabulary needs it) and their indices (document ends, 8 bytes)."""
    parts = []
    for path in sorted(folder.glob("*.ds")):
        ends = np.fromfile(path.with_name(path.name + ".index"), "<u8").astype(np.int64)
        width = path.stat().st_size // int(ends[-1])
        lengths = np.diff(ends, prepend=0)
        parts.append(Documents(np.fromfile(path, {2: "<u2", 4: "<u4"}[width]), lengths))
    return _joined(parts)


def check_equal(ours: Documents, peer: Documents, *, pair: str) -> dict[str, int]:
    """Raise SystemExit unless both hold the same documents, id by id; return how many there were."""
    if len(ours.lengths) != len(peer.lengths):
        raise SystemExit(f"{pair}: {len(ours.lengths):,} and {len(peer.lengths):,} documents; nothing was timed.")
    if not np.array_equal(ours.lengths, peer.lengths) or not np.array_equal(ours.ids, peer.ids):
        pairs = zip(*(np.split(one.ids, np.cumsum(one.lengths)[:-1]) for one in (ours, peer)), strict=True)
        first = next(number for number, pair in enumerate(pairs) if not np.array_equal(*pair))
        raise SystemExit(f"{pair}: the ids of document {first} (from 0) differ; nothing was timed.")
    return {"documents": len(ours.lengths), "tokens": len(ours.ids)}


def _joined(parts: Sequence[Documents]) -> Documents:
    return Documents(np.concatenate([part.ids for part in parts]), np.concatenate([part.lengths for part in parts]))
