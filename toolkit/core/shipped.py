"""Where the files that travel with the package are: in the wheel below the package, in a checkout beside it."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped_folder(name: str) -> Path:
    """The folder `ds_configs` or `launchers`, as installed or as checked out."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
