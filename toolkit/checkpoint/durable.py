"""Durable files of a checkpoint: hashed while they are written, and synced to disk."""

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch

from toolkit.checkpoint.manifest import FileEntry
from toolkit.core.files import copy_files, hash_folder, sync

_BLOCK_BYTES = 1 << 22
_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def write_file(path: Path, blocks: Iterable[bytes | memoryview]) -> FileEntry:
    """Write `blocks` to a new file, hash them on the way and sync it to disk."""
    digest = hashlib.sha256()
    num_bytes = 0
    with path.open("xb", buffering=0) as file:
        for block in blocks:
            digest.update(block)
            num_bytes += len(block)
            _write_whole(file.fileno(), memoryview(block))
        os.fsync(file.fileno())
    return FileEntry(bytes=num_bytes, sha256=digest.hexdigest())


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> FileEntry:
    """Write fp32 tensors on the CPU as a safetensors file."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return stream_safetensors(path, shapes, lambda name: [tensors[name].detach()], dtype=torch.float32)


def stream_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], Iterable[torch.Tensor]],
    *,
    dtype: torch.dtype,
) -> FileEntry:
    """Write a safetensors file without holding more than a part of one tensor.

    The library's own writer would need a second pass to hash the file and does not sync it to disk. The format is
    an 8-byte length, a JSON header with name, dtype, shape and byte range of each tensor, and the tensors end to end.

    Args:
        read: returns a tensor by name, as one or more consecutive blocks; called once for each name.
        dtype: of all blocks: float32 or bfloat16.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    ends: dict[str, int] = {}
    offset = 0
    for name in sorted(shapes):
        ends[name] = offset + math.prod(shapes[name]) * dtype.itemsize
        header[name] = {
            "dtype": _DTYPE_NAMES[dtype],
            "shape": list(shapes[name]),
            "data_offsets": [offset, ends[name]],
        }
        offset = ends[name]
    head = json.dumps(header, separators=(",", ":")).encode()
    # The data starts at a multiple of 8 bytes, as the format requires; spaces may follow the JSON.
    head += b" " * (-len(head) % 8)

    def blocks() -> Iterator[bytes | memoryview]:
        yield struct.pack("<Q", len(head)) + head
        written = 0
        for name in sorted(shapes):
            for block in read(name):
                assert block.dtype == dtype, f"{name} is {block.dtype}, not {dtype}"
                data = block.contiguous().view(-1).view(torch.uint8).numpy().data
                written += len(data)
                for start in range(0, len(data), _BLOCK_BYTES):
                    yield data[start : start + _BLOCK_BYTES]
            assert written == ends[name], f"{name} has another size than its shape {shapes[name]} says"

    return write_file(path, blocks())


def copy_tree(source: Path, target: Path) -> dict[str, FileEntry]:
    """Copy a folder of files durably, without links; return entries by path relative to the parent of `target`."""
    target.mkdir()
    # With "strict", a missing folder is an error; otherwise it would count as empty.
    hashes = hash_folder(source.resolve(strict=True))
    copy_files(source, target, hashes)
    for path in (*target.rglob("*"), target):
        sync(path)
    return {
        f"{target.name}/{name}": FileEntry(bytes=(target / name).stat().st_size, sha256=sha256)
        for name, sha256 in hashes.items()
    }


def _write_whole(handle: int, block: memoryview) -> None:
    while len(block):
        block = block[os.write(handle, block) :]
