"""Files that survive: written in one pass with their hash, and forced to the disk before anyone relies on them."""

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from toolkit.checkpoint.manifest import FileEntry

__all__ = ["copy_tree", "hash_file", "sync", "write_file", "write_safetensors"]

_BLOCK_BYTES = 1 << 22


def write_file(path: Path, blocks: Iterable[bytes | memoryview]) -> FileEntry:
    """Write `blocks` to a new file, hash them on the way and force them to the disk.

    Raises:
        OSError: the file exists, the disk is full, the folder is read-only, and whatever else the system says.
    """
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
    """Write fp32 tensors on the CPU as a safetensors file.

    The library's own writer would need a second pass to hash the file and does not force it to the disk. The format is
    an 8-byte length, a JSON header with name, dtype, shape and byte range of each tensor, and the tensors end to end.

    Raises:
        OSError: as `write_file`.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    arrays: list[np.ndarray] = []
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        assert tensor.dtype == torch.float32, f"{name} is {tensor.dtype}; a checkpoint holds float32"
        array = tensor.detach().contiguous().numpy()
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
        arrays.append(array)
    head = json.dumps(header, separators=(",", ":")).encode()
    # The data starts at a multiple of 8 bytes, as the format asks; blanks may follow the JSON.
    head += b" " * (-len(head) % 8)

    def blocks() -> Iterator[bytes | memoryview]:
        yield struct.pack("<Q", len(head)) + head
        for array in arrays:
            data = array.reshape(-1).view(np.uint8).data
            for start in range(0, len(data), _BLOCK_BYTES):
                yield data[start : start + _BLOCK_BYTES]

    return write_file(path, blocks())


def copy_tree(source: Path, target: Path) -> dict[str, FileEntry]:
    """Copy a folder of files durably; entries by path relative to `target`.

    Raises:
        OSError: `source` cannot be read or `target` cannot be written.
    """
    entries: dict[str, FileEntry] = {}
    target.mkdir()
    for item in sorted(source.iterdir()):
        if item.is_dir():
            below = copy_tree(item, target / item.name)
            entries.update({f"{item.name}/{name}": entry for name, entry in below.items()})
        else:
            entries[item.name] = write_file(target / item.name, _read_blocks(item))
            shutil.copymode(item, target / item.name)
    sync(target)
    return entries


def hash_file(path: Path) -> FileEntry:
    """Size and hash of a file as it is now.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    num_bytes = 0
    for block in _read_blocks(path):
        digest.update(block)
        num_bytes += len(block)
    return FileEntry(bytes=num_bytes, sha256=digest.hexdigest())


def sync(path: Path) -> None:
    """Force a file's content, or a folder's entries, to the disk: a rename is not safe before this."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _write_whole(handle: int, block: memoryview) -> None:
    while len(block):
        block = block[os.write(handle, block) :]
