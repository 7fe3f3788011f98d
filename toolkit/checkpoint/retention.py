"""Retention of checkpoints: when they are saved, and which are kept."""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field

from toolkit.checkpoint.folders import latest_step, remove_folder, step_folders
from toolkit.checkpoint.manifest import MANIFEST_NAME, manifest_bytes, read_manifest
from toolkit.core.errors import CheckpointError
from toolkit.core.files import PARTIAL_FILES, atomic_write
from toolkit.core.settings import Settings


class CheckpointSettings(Settings):
    """When checkpoints are saved and which are kept. The last step is always saved."""

    every: int | None = Field(default=None, ge=1)
    """Save at multiples of this step. Unset: only at `keep_every` and `keep_at`."""

    keep: int = Field(default=2, ge=1)
    """Number of newest checkpoints to keep."""

    keep_every: int | None = Field(default=None, ge=1)
    """Also save at multiples of this step, and never delete these."""

    keep_at: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(), strict=False)
    """Also save at these steps, and never delete these; 0: before the first update."""

    keep_best: bool | Annotated[str, Field(min_length=1)] = False
    """Also save at the lowest validation loss so far, and never delete the best: of the last phase's objective, or of a
    named one."""

    keep_weights_only: bool = False
    """Drop the optimizer moments, two thirds of the size, of checkpoints that stay besides the `keep` newest: these
    cannot be resumed or forked."""

    copy_to: Annotated[str, Field(min_length=1)] | None = None
    """URL (`s3://...`) or folder to which each complete checkpoint is copied, and from which a run with an empty folder
    resumes. Copies are never deleted."""

    def is_due(self, step: int) -> bool:
        """True if a checkpoint is saved at this step, whether or not it is the last."""
        if step == 0:
            return 0 in self.keep_at
        return self.is_kept(step) or (self.every is not None and step % self.every == 0)

    def is_kept(self, step: int) -> bool:
        """True if the checkpoint of this step is never deleted."""
        return step in self.keep_at or (self.keep_every is not None and step % self.keep_every == 0)


def retain(
    root: Path, keep: int, *, is_kept: Callable[[int], bool] = lambda step: False, in_use: Container[int] = ()
) -> None:
    """Remove checkpoints that are no longer needed.

    The `keep` newest with all their files are kept, and every one whose step `is_kept`. Two kinds among the newest are
    kept without being counted, so that they cannot displace a good one: those that lack files, and those of a later
    step than the last one written, which were damaged when the run was resumed before them. Files are not hashed here.
    Those of the steps `in_use` are kept this time, as they are still to be read.
    """
    for step, folder in _older(root, keep):
        if step not in in_use and not is_kept(step):
            with _explained("remove the old checkpoint", folder):
                remove_folder(folder)


def drop_moments(root: Path, keep: int, *, in_use: Container[int] = ()) -> None:
    """Drop the moments of all but the `keep` newest; a kill leaves each checkpoint whole, with moments or without."""
    for step, folder in _older(root, keep):
        if step in in_use:
            continue
        with _explained("remove the moments of", folder), suppress(CheckpointError):
            manifest = read_manifest(folder)
            if manifest.has_moments:
                atomic_write(folder / MANIFEST_NAME, manifest_bytes(manifest.without_moments()))
            for left in (*folder.glob("exp_avg*"), *folder.glob(PARTIAL_FILES)):
                left.unlink()


def _older(root: Path, keep: int) -> Iterator[tuple[int, Path]]:
    """Checkpoints older than the `keep` newest whole ones, as (step, folder), newest first."""
    assert keep >= 1, "at least one checkpoint stays"
    num_complete, last_written = 0, latest_step(root)
    for step, folder in step_folders(root):
        if last_written is not None and step > last_written:
            continue
        if num_complete < keep:
            num_complete += is_complete(folder)
        else:
            yield step, folder


@contextmanager
def _explained(what: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"could not {what} {folder}: {error.strerror}. "
            "Make its folder writable, or remove it yourself; newer checkpoints are intact."
        ) from error


def is_complete(folder: Path) -> bool:
    """True if a checkpoint has a manifest and all files, each of the right size; they are not hashed."""
    try:
        files = read_manifest(folder).files
        return all((folder / name).stat().st_size == entry.bytes for name, entry in files.items())
    except (CheckpointError, OSError):
        return False
