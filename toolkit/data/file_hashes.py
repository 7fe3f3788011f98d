"""SHA-256 of files, read in pieces so that the reader can say how far it is."""

import hashlib
from collections.abc import Callable
from pathlib import Path

_PIECE = 1 << 20


def hash_file(path: Path, *, on_read: Callable[[int], object] | None = None) -> str:
    """SHA-256 of a file, hexadecimal; `on_read` is told the number of bytes of each piece.

    Raises:
        OSError: it cannot be read.
    """
    digest, piece = hashlib.sha256(), bytearray(_PIECE)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(memoryview(piece)[:count])
            if on_read is not None:
                on_read(count)
    return digest.hexdigest()


def hash_folder(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path in the folder with `/` between the parts, in order.

    Raises:
        OSError: a file cannot be read.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in paths}
