"""Reading checkpoints, one tensor at a time; files are hashed before they are trusted, which needs no torch."""

import logging
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from safetensors import SafetensorError, safe_open

from toolkit.checkpoint.folders import CHECKPOINTS_FOLDER, TOKENIZER_FOLDER, step_folders
from toolkit.checkpoint.manifest import (
    COPY_AGAIN,
    MANIFEST_NAME,
    CheckpointManifest,
    FileEntry,
    TensorKind,
    read_manifest,
    tensor_file,
)
from toolkit.core.errors import CheckpointError
from toolkit.core.files import copy_files, hash_file
from toolkit.core.text import quoted

if TYPE_CHECKING:
    import torch

_WHAT_TO_GIVE = f"Give a checkpoint (RUN_DIR/{CHECKPOINTS_FOLDER}/step-NNNNNNNN), or the folder of a run that has one."
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ParameterState:
    """A parameter as AdamW sees it: three fp32 CPU tensors of one shape, by Hugging Face name."""

    name: str
    weight: "torch.Tensor"
    exp_avg: "torch.Tensor"
    exp_avg_sq: "torch.Tensor"

    @property
    def tensors(self) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
        """Its weight and both moments."""
        return self.weight, self.exp_avg, self.exp_avg_sq


class Checkpoint:
    """A checkpoint folder. Made by `open_checkpoint`, `newest_intact` or `open_unverified`."""

    def __init__(self, path: Path, manifest: CheckpointManifest) -> None:
        self.path = path
        self.manifest = manifest

    @property
    def tokenizer_folder(self) -> Path:
        """Folder of the run's tokenizer."""
        return self.path / TOKENIZER_FOLDER

    @property
    def tokenizer_files(self) -> dict[str, str]:
        """SHA-256 of each file of the tokenizer, by its path in `tokenizer_folder`."""
        files, inside = self.manifest.files.items(), f"{TOKENIZER_FOLDER}/"
        return {name.removeprefix(inside): entry.sha256 for name, entry in files if name.startswith(inside)}

    @property
    def names(self) -> list[str]:
        """Names of all parameters, sorted."""
        return sorted(self.manifest.tensors)

    def weight(self, name: str) -> "torch.Tensor":
        """A parameter's weight, fp32 on the CPU."""
        return self._tensor("weights", name)

    def rows(self, name: str) -> "Iterator[torch.Tensor]":
        """A parameter's weight in blocks along its first dimension, fp32; only one block at a time is in memory."""
        from toolkit.checkpoint.tensor_files import read_header, read_rows

        entry = self.manifest.tensors.get(name)
        if entry is None:
            raise CheckpointError(f"{self.path} has no parameter {name}. {COPY_AGAIN}")
        place = read_header(self.path / tensor_file("weights", entry.file)).get(name)
        if place is None or place.shape != entry.shape:
            raise CheckpointError(
                f"{self.path}: expected {name} of shape {entry.shape}, found {place and place.shape}. {COPY_AGAIN}"
            )
        return read_rows(place)

    def parameter(self, name: str) -> ParameterState:
        """A parameter with both moments, fp32 on the CPU; moments are zeros if the checkpoint has none."""
        if not self.manifest.has_moments:
            return self.fresh_parameter(name)
        return ParameterState(name, *(self._tensor(kind, name) for kind in get_args(TensorKind)))

    def fresh_parameter(self, name: str) -> ParameterState:
        """A parameter with zero moments, as for a new optimizer."""
        import torch

        weight = self._tensor("weights", name)
        return ParameterState(name, weight, torch.zeros_like(weight), torch.zeros_like(weight))

    def copy_to(self, folder: Path) -> None:
        """Copy files and manifest into an empty folder. Raise `UserError` if a file is not what was written."""
        copy_files(self.path, folder, {name: entry.sha256 for name, entry in self.manifest.files.items()})
        shutil.copyfile(self.path / MANIFEST_NAME, folder / MANIFEST_NAME)

    def verify(self) -> None:
        """Hash every file. Raise `CheckpointError` for the first, sorted by name, that is missing or not as written."""
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            files = sorted(self.manifest.files.items())
            problems = pool.map(lambda item: self._problem(*item, is_hashed=True), files)
        for problem in problems:
            if problem is not None:
                raise CheckpointError(f"{problem} {COPY_AGAIN}")

    def check_sizes(self) -> None:
        """Check the size of every file, which takes no time; changed bytes are not detected."""
        for name, expected in sorted(self.manifest.files.items()):
            if problem := self._problem(name, expected, is_hashed=False):
                raise CheckpointError(problem)

    def _problem(self, name: str, expected: FileEntry, *, is_hashed: bool) -> str | None:
        path = self.path / name
        try:
            # A wrong size is found without reading the file, and says more than a hash.
            if (size := path.stat().st_size) != expected.bytes:
                return f"{path} is damaged: expected {expected.bytes:,} bytes, found {size:,}."
            found = hash_file(path) if is_hashed else expected.sha256
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}."
        if found != expected.sha256:
            return f"{path} is damaged: expected SHA-256 {expected.sha256[:12]}, found {found[:12]}."
        return None

    def _tensor(self, kind: TensorKind, name: str) -> "torch.Tensor":
        import torch

        entry = self.manifest.tensors.get(name)
        if entry is None:
            raise CheckpointError(f"{self.path} has no parameter {name}. {COPY_AGAIN}")
        path = self.path / tensor_file(kind, entry.file)
        try:
            with safe_open(path, framework="pt") as file:
                tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}. {COPY_AGAIN}") from error
        assert isinstance(tensor, torch.Tensor)
        if tuple(tensor.shape) != entry.shape or tensor.dtype != torch.float32:
            raise CheckpointError(
                f"{path}: expected {name} as torch.float32 of shape {entry.shape}, "
                f"found {tensor.dtype} of {tuple(tensor.shape)}. {COPY_AGAIN}"
            )
        return tensor


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a checkpoint folder, or the newest intact one of a run folder or of a folder of checkpoints.

    Damaged newer ones are logged as warnings. Raise `CheckpointError` if all are damaged, or there is none.
    """
    path = Path(path)
    roots = [root for root in (path / CHECKPOINTS_FOLDER, path) if step_folders(root)]
    if roots and not (path / MANIFEST_NAME).exists():
        newest, skipped = newest_intact(roots[0])
        if newest is None:
            raise CheckpointError("\n".join([f"{roots[0]} holds no intact checkpoint.", *skipped]))
        for message in skipped:
            _log.warning(message)
        return newest
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory. {_WHAT_TO_GIVE}")
    if not (path / MANIFEST_NAME).exists():
        raise CheckpointError(
            f"{path} holds no checkpoint: it has neither {MANIFEST_NAME} nor {CHECKPOINTS_FOLDER}/step-NNNNNNNN."
            f"{import_hint(path)} {_WHAT_TO_GIVE}"
        )
    checkpoint = open_unverified(path)
    checkpoint.verify()
    return checkpoint


def import_hint(path: Path) -> str:
    """Hint for a message that `path` has no checkpoint: how to import the Hugging Face model there; empty if none."""
    if not (path / "config.json").is_file():
        return ""
    return f" It is a Hugging Face model; import it first: toolkit convert --from-hf {quoted(path)} OUT."


def newest_intact(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint below `root` with all files as they were written; `root` need not exist.

    None if there is none, and a message for each newer one that was skipped.
    """
    skipped: list[str] = []
    for _, folder in step_folders(root):
        try:
            checkpoint = open_unverified(folder)
            checkpoint.verify()
        except CheckpointError as error:
            skipped.append(f"skipping {folder.name}: {error}")
        else:
            return checkpoint, skipped
    return None, skipped


def open_unverified(path: Path) -> Checkpoint:
    """Open a checkpoint folder whose files another process has just hashed; only the manifest is checked."""
    return Checkpoint(path, read_manifest(path))
