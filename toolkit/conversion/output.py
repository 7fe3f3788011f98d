"""Output folder of a conversion, written atomically."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from toolkit.core.errors import UserError, is_out_of_room
from toolkit.core.files import atomic_directory


def check_output(out: Path) -> None:
    """Raise if the destination exists already and is not an empty folder.

    Raises:
        UserError: `out` exists and is not an empty directory.
    """
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} already exists. Name a new folder, or remove it first.")


@contextmanager
def output_directory(out: Path) -> Iterator[Path]:
    """A hidden folder that becomes `out` when the block succeeds, and is removed when it does not.

    Raises:
        UserError: the disk is full, or the place cannot be written.
    """
    try:
        with atomic_directory(out) as folder:
            yield folder
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "Free space there, or name another folder" if is_out_of_room(error) else "Name another folder"
        raise UserError(f"{out} cannot be written: {reason}. {remedy}; no partial output is left there.") from error
