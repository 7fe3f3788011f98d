"""Writing of checkpoints: of a training run by all of its ranks, of imported weights by one process.

One process calls `begin`, which makes a hidden folder next to the finished ones. Every writing process then calls
`write_part` with its share of the parameters, possibly concurrently. When all have returned, one process merges their
entries into a manifest and calls `finish`: the tokenizer and the manifest are added, everything is synced to disk, and
one rename makes the folder visible. A process that dies before that rename leaves only a hidden folder, which the next
`begin` removes; one that dies after it leaves a complete checkpoint. `latest` names the newest and is replaced in one
step too; readers do not depend on it.

A run folder has one run at a time. If two write to it, the second one's `begin` removes the folder of the first,
whose `finish` then fails: nothing incomplete becomes visible.
"""

import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import get_args

import torch

from toolkit.checkpoint.durable import copy_tree, stream_safetensors, write_file, write_safetensors
from toolkit.checkpoint.folders import (
    LATEST_NAME,
    TOKENIZER_FOLDER,
    WRITING_PREFIX,
    remove_leftovers,
    set_aside,
    step_name,
)
from toolkit.checkpoint.manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    FileEntry,
    TensorEntry,
    TensorKind,
    manifest_bytes,
    tensor_file,
)
from toolkit.checkpoint.read import ParameterState, open_checkpoint
from toolkit.core.errors import CheckpointError, is_out_of_room
from toolkit.core.files import atomic_write, sync

_LARGEST_FILE = 4 << 30


@dataclass(frozen=True)
class PartEntry:
    """Content of one or more parts: tensors by name, files by name."""

    tensors: dict[str, TensorEntry]
    files: dict[str, FileEntry]


def begin(root: Path, step: int) -> Path:
    """Make a fresh hidden folder for the checkpoint of `step` below `root`, and remove what dead runs left there."""
    folder = root / f"{WRITING_PREFIX}{step_name(step)}-{uuid.uuid4().hex[:12]}"
    with _cleaning_up(folder):
        root.mkdir(parents=True, exist_ok=True)
        remove_leftovers(root)
        folder.mkdir()
    return folder


def write_part(folder: Path, *, part: int, num_parts: int, parameters: Iterable[ParameterState]) -> PartEntry:
    """Write one part, from one of `num_parts` writers, into a folder that `begin` made.

    Args:
        part: number of this writer, from 0.
        parameters: this writer's share of the parameters; read once, held in memory until written. Without any,
            nothing is written.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written. The folder is left for `abandon`, to be
            called when no other writer is active there, whose error would hide this one.
    """
    file = f"{part:05d}-of-{num_parts:05d}.safetensors"
    with _explained(folder):
        states = list(parameters)
        if not states:
            # Most of ten thousand ranks have none: their files would be nearly all of the folder and the manifest.
            return PartEntry(tensors={}, files={})
        tensors: dict[str, TensorEntry] = {}
        for state in states:
            shape = tuple(state.weight.shape)
            assert state.exp_avg.shape == shape == state.exp_avg_sq.shape, (
                f"the moments of {state.name} differ in shape"
            )
            assert state.name not in tensors, f"{state.name} was given twice"
            tensors[state.name] = TensorEntry(shape=shape, file=file)
        kinds: dict[TensorKind, dict[str, torch.Tensor]] = {
            "weights": {state.name: state.weight for state in states},
            "exp_avg": {state.name: state.exp_avg for state in states},
            "exp_avg_sq": {state.name: state.exp_avg_sq for state in states},
        }
        # Hashing and writing release the GIL, so the three files are written in parallel.
        with ThreadPoolExecutor(len(kinds)) as pool:
            written = {
                tensor_file(kind, file): pool.submit(write_safetensors, folder / tensor_file(kind, file), content)
                for kind, content in kinds.items()
            }
        return PartEntry(tensors=tensors, files={name: entry.result() for name, entry in written.items()})


def merge_parts(parts: Sequence[PartEntry]) -> PartEntry:
    """Union of the entries of all writers, for the manifest."""
    tensors: dict[str, TensorEntry] = {}
    files: dict[str, FileEntry] = {}
    for part in parts:
        assert not tensors.keys() & part.tensors.keys(), "a parameter was written by two parts"
        assert not files.keys() & part.files.keys(), "two writers had the same part number"
        tensors.update(part.tensors)
        files.update(part.files)
    return PartEntry(tensors=tensors, files=files)


def finish(folder: Path, manifest: CheckpointManifest, *, tokenizer_folder: Path) -> Path:
    """Make the checkpoint visible, and return its folder. All writers must have returned.

    If an intact checkpoint of this step already exists, the new one is dropped; a damaged one is replaced.
    After a `CheckpointError` (the disk is full, the folder cannot be written, or is gone) the folder is removed.

    Args:
        manifest: with `tensors` and `files` of `merge_parts`; the tokenizer's files are added here.
        tokenizer_folder: copied to `tokenizer/`.
    """
    root, final = folder.parent, folder.parent / step_name(manifest.step)
    with _cleaning_up(folder):
        expected = {
            tensor_file(kind, entry.file) for entry in manifest.tensors.values() for kind in get_args(TensorKind)
        }
        assert expected <= manifest.files.keys(), "the manifest lists tensors whose files it does not list"
        for name, entry in manifest.files.items():
            if (size := (folder / name).stat().st_size) != entry.bytes:
                raise CheckpointError(
                    f"{folder / name} has {size:,} bytes, expected {entry.bytes:,}. Check the disk; "
                    "checkpoints already there are unchanged."
                )
        _complete(folder, manifest, tokenizer_folder)
        if final.exists() and _is_intact(final):
            shutil.rmtree(folder)
        else:
            damaged = set_aside(final)
            folder.rename(final)
            if damaged is not None:
                shutil.rmtree(damaged, ignore_errors=True)
        sync(root)
        atomic_write(root / LATEST_NAME, f"{final.name}\n")
    return final


def write_weights_only(
    folder: Path,
    manifest: CheckpointManifest,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], Iterable[torch.Tensor]],
    tokenizer_folder: Path,
) -> CheckpointManifest:
    """Fill an empty folder with a checkpoint, and return the manifest as written; the caller makes it visible.

    Args:
        manifest: its `tensors` and `files` are filled in here.
        shapes: shapes of all parameters, by Hugging Face name.
        read: returns a parameter by name as consecutive fp32 blocks; called once for each.
        tokenizer_folder: copied to `tokenizer/`.

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
    weights_only = manifest.model_copy(update={"tensors": tensors, "files": files, "has_moments": False})
    return _complete(folder, weights_only, tokenizer_folder)


def _complete(folder: Path, manifest: CheckpointManifest, tokenizer_folder: Path) -> CheckpointManifest:
    """Add the tokenizer and, last, the manifest, which lists the tokenizer's files too."""
    copied = copy_tree(tokenizer_folder, folder / TOKENIZER_FOLDER)
    whole = manifest.model_copy(update={"files": {**manifest.files, **copied}})
    write_file(folder / MANIFEST_NAME, [manifest_bytes(whole)])
    sync(folder)
    return whole


def split_into_files(sizes: Mapping[str, int], largest: int) -> list[list[str]]:
    """Group sorted names into files of at most `largest` bytes; a larger tensor gets a file of its own."""
    files: list[list[str]] = [[]]
    filled = 0
    for name in sorted(sizes):
        if files[-1] and filled + sizes[name] > largest:
            files.append([])
            filled = 0
        files[-1].append(name)
        filled += sizes[name]
    return files


def abandon(folder: Path) -> None:
    """Remove a folder that `begin` made and that will not be finished."""
    shutil.rmtree(folder, ignore_errors=True)


def _is_intact(folder: Path) -> bool:
    try:
        open_checkpoint(folder)
    except CheckpointError:
        return False
    return True


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(_failure_message(folder, error)) from error


@contextmanager
def _cleaning_up(folder: Path) -> Iterator[None]:
    """Remove the temporary folder if anything fails, and explain an `OSError`."""
    try:
        with _explained(folder):
            yield
    except BaseException:
        abandon(folder)
        raise


def _failure_message(folder: Path, error: OSError) -> str:
    root = folder.parent
    problem = f"could not write the checkpoint to {root}: {error.strerror or error}"
    if error.filename is not None:
        problem += f" ({error.filename})"
    if is_out_of_room(error):
        problem += f"; {shutil.disk_usage(root).free / 1e9:.2f} GB are free. Free space there"
    elif root.exists() and not folder.exists():
        problem += "; its temporary folder is gone. Check whether another process failed or another run writes there"
    else:
        problem += ". Make that folder writable"
    return f"{problem}, or set run.dir to another place. Checkpoints already there are unchanged."
