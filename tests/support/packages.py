"""Packages laid down in a folder as an installer does, with entry points."""

from collections.abc import Mapping
from pathlib import Path


def lay_down_entry_points(folder: Path, package: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """The metadata of a package of version 1.5, beside its modules.

    Args:
        folder: a folder on sys.path.
        package: its name.
        points: by group, `module:Class` by name.
    """
    metadata = folder / f"{package}-1.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
        for group, named in points.items()
    ]
    (metadata / "entry_points.txt").write_text("".join(lines))
