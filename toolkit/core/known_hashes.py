"""SHA-256 of files, kept from one command to the next.

Hashing a model and its data takes minutes where they are large. A file is not read again while path, size, times and
inode are those of the last time.
"""

import time
from pathlib import Path

from toolkit.core.cache import CachedResult
from toolkit.core.files import hash_file

_SMALL_BYTES = 1 << 20
"""Below this, reading is as fast as looking up."""
_SETTLED_NANOSECONDS = 2 * 10**9
"""A file that changed less than this ago might change once more without another time."""


class KnownHashes:
    """Hashes by path, kept in the user's cache folder."""

    def __init__(self) -> None:
        self._cached = CachedResult("hashes", "path: size, mtime, ctime, inode, SHA-256")
        self._known, self._new = self._read(), dict[str, list[object]]()

    def hash(self, file: Path) -> str:
        """SHA-256 of a file, hexadecimal."""
        status, key = file.stat(), str(file.resolve())
        if status.st_size < _SMALL_BYTES:
            return hash_file(file)
        mark = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        *known_mark, digest = self._new.get(key) or self._known.get(key) or [None]
        if known_mark == mark:
            return str(digest)
        digest = hash_file(file)
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NANOSECONDS:
            self._new[key] = [*mark, digest]
        return digest

    def save(self) -> None:
        """Keep what was hashed since, and forget files that are gone; a cache that cannot be written costs time."""
        if not self._new:
            return
        merged = {**self._read(), **self._new}
        self._cached.write({key: entry for key, entry in merged.items() if Path(key).exists()})

    def _read(self) -> dict[str, list[object]]:
        return self._cached.read() or {}
