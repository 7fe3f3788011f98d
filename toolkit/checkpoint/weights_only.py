"""Writing a checkpoint of imported weights: without moments, one block of a tensor in memory at a time."""

from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path

import torch

from toolkit.checkpoint.durable import copy_tree, stream_safetensors, write_file
from toolkit.checkpoint.folders import TOKENIZER_FOLDER
from toolkit.checkpoint.manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    FileEntry,
    TensorEntry,
    manifest_bytes,
    tensor_file,
)
from toolkit.core.files import sync

_LARGEST_FILE = 4 << 30


def write_weights_only(
    folder: Path,
    manifest: CheckpointManifest,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], Iterable[torch.Tensor]],
    tokenizer_folder: Path,
) -> CheckpointManifest:
    """Fill an empty folder with a checkpoint; the caller makes it visible.

    Args:
        folder: exists, and is empty.
        manifest: its `tensors` and `files` are filled in here.
        shapes: of every parameter, by Hugging Face name.
        read: gives a parameter by name as fp32 blocks that follow one another; called once for each.
        tokenizer_folder: copied to `tokenizer/`.

    Returns:
        The manifest as written.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    tensors: dict[str, TensorEntry] = {}
    files: dict[str, FileEntry] = {}
    parts = split_into_files({name: prod(shape) * 4 for name, shape in shapes.items()}, _LARGEST_FILE)
    for number, names in enumerate(parts):
        file = f"{number:05d}-of-{len(parts):05d}.safetensors"
        weights = tensor_file("weights", file)
        files[weights] = stream_safetensors(
            folder / weights, {name: shapes[name] for name in names}, read, dtype=torch.float32
        )
        tensors |= {name: TensorEntry(shape=shapes[name], file=file) for name in names}
    copied = copy_tree(tokenizer_folder, folder / TOKENIZER_FOLDER)
    files |= {f"{TOKENIZER_FOLDER}/{name}": entry for name, entry in copied.items()}
    whole = manifest.model_copy(update={"tensors": tensors, "files": files, "has_moments": False})
    write_file(folder / MANIFEST_NAME, [manifest_bytes(whole)])
    sync(folder)
    return whole


def split_into_files(sizes: Mapping[str, int], largest: int) -> list[list[str]]:
    """Names in files of at most `largest` bytes, in the order of their names; a larger tensor has a file of its own."""
    files: list[list[str]] = [[]]
    filled = 0
    for name in sorted(sizes):
        if files[-1] and filled + sizes[name] > largest:
            files.append([])
            filled = 0
        files[-1].append(name)
        filled += sizes[name]
    return files
