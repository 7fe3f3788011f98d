"""Names in and below a folder of checkpoints: visible checkpoints and hidden leftovers."""

import re
import shutil
import uuid
from pathlib import Path

from toolkit.checkpoint.manifest import MANIFEST_NAME
from toolkit.core.files import PARTIAL_FILES
from toolkit.core.text import counted

CHECKPOINTS_FOLDER = "checkpoints"
"""Folder of checkpoints in a run's folder."""
TOKENIZER_FOLDER = "tokenizer"
"""Folder of the tokenizer in a checkpoint."""
LATEST_NAME = "latest"
WRITING_PREFIX = ".writing-"
_REMOVING_PREFIX = ".removing-"
_STEP_NAME = re.compile(r"step-(\d{8,})")


def step_name(step: int) -> str:
    """Folder name of a step: `step-00000020`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step in a checkpoint folder's name; None for any other name."""
    found = _STEP_NAME.fullmatch(name)
    return int(found[1]) if found else None


def step_folders(root: Path) -> list[tuple[int, Path]]:
    """Visible checkpoint folders below `root` as (step, folder), newest first; empty if `root` does not exist."""
    if not root.is_dir():
        return []
    steps = ((step_of(path.name), path) for path in root.iterdir())
    return sorted(((step, path) for step, path in steps if step is not None and path.is_dir()), reverse=True)


def latest_step(root: Path) -> int | None:
    """The step written last, according to `latest` below `root`; None if that names no step."""
    try:
        return step_of((root / LATEST_NAME).read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        return None


def holds_checkpoints(folder: Path) -> bool:
    """True if a folder is a checkpoint, a folder of checkpoints, or a run that has one; none is opened."""
    return (folder / MANIFEST_NAME).is_file() or (folder / CHECKPOINTS_FOLDER).is_dir() or bool(step_folders(folder))


def set_aside(folder: Path) -> Path | None:
    """Hide a visible checkpoint in one step and return its new path; None if there is none.

    Deleting in place would expose a partial checkpoint to readers meanwhile, or for good after a crash.
    """
    if not folder.exists():
        return None
    return folder.rename(folder.parent / f"{_REMOVING_PREFIX}{folder.name}-{uuid.uuid4().hex[:12]}")


def remove_folder(folder: Path) -> None:
    """Delete a visible checkpoint; it is never visible in part. `half_removed` reports what could not be deleted."""
    hidden = set_aside(folder)
    if hidden is not None:
        shutil.rmtree(hidden, ignore_errors=True)


def half_removed(root: Path) -> str:
    """Message about removed checkpoints below `root` that could not be deleted and are never read; empty if none.

    On NFS, an open file keeps its folder. Each new checkpoint retries.
    """
    left = len(list(root.glob(f"{_REMOVING_PREFIX}*")))
    return f"{counted(left, 'removed checkpoint')} not deleted yet: {root}/{_REMOVING_PREFIX}*" if left else ""


def remove_leftovers(root: Path) -> None:
    """Delete hidden folders and files that an unfinished write or removal left below `root`.

    Call only when nothing is being written there.
    """
    for path in [*root.glob(f"{WRITING_PREFIX}*"), *root.glob(f"{_REMOVING_PREFIX}*"), *root.glob(PARTIAL_FILES)]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
