"""A folder that appears whole or not at all: made beside its place under a hidden name, and renamed."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from toolkit.core.errors import UserError, is_out_of_room
from toolkit.core.files import sync


def refuse_occupied(out: Path) -> None:
    """Refuse a place that holds something.

    Raises:
        UserError: `out` exists and is no empty folder.
    """
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists already. Name a new folder, or remove it first.")


@contextmanager
def built_beside(out: Path) -> Iterator[Path]:
    """A hidden folder that becomes `out` when the block succeeds, and is removed when it does not.

    So are the folders above it that were made for it.

    Raises:
        UserError: the disk is full, or the place cannot be written.
    """
    folder = out.absolute().parent / f".converting-{out.name}-{uuid.uuid4().hex[:12]}"
    new = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.mkdir(parents=True)
        yield folder
        for path in (*folder.rglob("*"), folder):
            sync(path)
        folder.rename(out)
        sync(folder.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "Free space there, or name another folder" if is_out_of_room(error) else "Name another folder"
        raise UserError(f"{out} cannot be written: {reason}. {remedy}; nothing is left behind there.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        # From the lowest on; one that holds something by now stays, and so do those above it.
        with suppress(OSError):
            for parent in new:
                parent.rmdir()
