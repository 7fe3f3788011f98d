"""Checkpoints in object storage: the newest at a URL, download to a disk of this machine, and upload.

The manifest is copied last, so that a checkpoint with a manifest is complete.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from toolkit.checkpoint.folders import CHECKPOINTS_FOLDER, step_of
from toolkit.checkpoint.manifest import MANIFEST_NAME, CheckpointManifest, parse_manifest, read_manifest
from toolkit.checkpoint.read import Checkpoint
from toolkit.checkpoint.retention import is_complete
from toolkit.core.errors import CheckpointError, SettingsError, UserError
from toolkit.core.files import atomic_directory, cache_folder
from toolkit.core.locks import locked_file
from toolkit.run.comparison import check_same_run
from toolkit.run.folder import RunFolder
from toolkit.run.identity import saved_settings
from toolkit.storage import download, list_objects, put, read, remove


@dataclass(frozen=True)
class RemoteCheckpoint:
    """A checkpoint in object storage: its URL, and its manifest, raw and parsed."""

    url: str
    content: bytes
    manifest: CheckpointManifest

    @classmethod
    def newest(cls, url: str) -> Self | None:
        """The checkpoint at a URL, or the newest of a run or a folder of checkpoints there; None if absent."""
        url, steps = url.rstrip("/"), dict[int, str]()
        for name in list_objects(url):
            folder, _, file = name.rpartition("/")
            step = -1 if not folder else step_of(folder.removeprefix(f"{CHECKPOINTS_FOLDER}/"))
            if file == MANIFEST_NAME and step is not None:
                steps[step] = f"{url}/{folder}".rstrip("/")
        if not steps:
            return None
        found = steps.get(-1) or steps[max(steps)]
        content = read(f"{found}/{MANIFEST_NAME}")
        return cls(found, content, parse_manifest(content, f"{found}/{MANIFEST_NAME}"))

    def download(self, folder: Path) -> None:
        """Download it to a folder that does not exist yet, atomically; the hash of each file is verified."""
        try:
            with atomic_directory(folder) as target:
                for name, entry in self.manifest.files.items():
                    path = target / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    download(f"{self.url}/{name}", path, num_bytes=entry.bytes, sha256=entry.sha256)
                (target / MANIFEST_NAME).write_bytes(self.content)
        except OSError as error:
            raise CheckpointError(
                f"could not download {self.url} to {folder}: {error.strerror or error}. Free space there, or make it "
                "writable."
            ) from error
        except UserError as error:
            raise CheckpointError(f"{error}\nWithout {self.url}, the newest of those beside it is taken.") from error

    def cached(self) -> Path:
        """Its folder below `$XDG_CACHE_HOME`, downloaded by the first process of this machine that asks."""
        folder = cache_folder() / CHECKPOINTS_FOLDER / hashlib.sha256(self.content).hexdigest()[:32]
        with locked_file(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():
                self.download(folder)
        return folder


def copy_missing(folder: RunFolder, url: str, copied: set[int]) -> None:
    """Copy a run's complete checkpoints that are not in `copied`, oldest first, adding each once it is there."""
    for step, checkpoint in reversed(folder.steps()):
        if step not in copied and is_complete(checkpoint):
            copy_checkpoint(checkpoint, f"{url.rstrip('/')}/{checkpoint.name}")
            copied.add(step)


def copy_checkpoint(folder: Path, url: str) -> None:
    """Copy a complete checkpoint to a URL, unless it is there already; a CheckpointError if another run's is there."""
    last, manifest = f"{url}/{MANIFEST_NAME}", read_manifest(folder)
    if is_there := bool(list_objects(last)):
        try:
            if _is_copied(manifest, last):
                return
        except SettingsError as error:
            raise CheckpointError(f"{url} is a checkpoint of another run. Set another checkpoint.copy_to.") from error
    Checkpoint(folder, manifest).check_sizes()
    if is_there:
        # Otherwise the checkpoint there would have files of both until the last one is copied.
        remove(last)
    for name in (*manifest.files, MANIFEST_NAME):
        put(folder / name, f"{url}/{name}")


def _is_copied(manifest: CheckpointManifest, last: str) -> bool:
    """Return whether the manifest there is this one, or this one with moments; a SettingsError for another run's.

    A damaged one is replaced.
    """
    with suppress(CheckpointError):
        there = parse_manifest(read(last), last)
        if manifest in (there, there.without_moments()):
            return True
        check_same_run(there.settings, saved_settings(manifest))
    return False
