"""Results cached between commands, each with a description of everything it depends on."""

import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.core.files import atomic_write, cache_folder, hash_file

# Smaller files are hashed as fast as they are looked up.
_SMALL_BYTES = 1 << 20
# A file that changed more recently than this might change again without a new timestamp.
_SETTLED_NANOSECONDS = 2 * 10**9


def digest_of(description: Any) -> str:
    """SHA-256 of plain data, hexadecimal."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


class CachedResult:
    """A JSON value cached at `path`, in the user's cache folder; an unwritable folder only costs time."""

    def __init__(self, name: str, description: Any) -> None:
        self._description = description
        self.path = cache_folder() / f"{name}-{digest_of(description)[:16]}.json"

    def read(self) -> Any:
        """The value; None if absent, or not as it was written."""
        try:
            kept = json.loads(self.path.read_bytes())
            return kept["value"] if kept["key"] == self._key(kept["value"]) else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, value: Any) -> None:
        """Store a value."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self.path, json.dumps({"key": self._key(value), "value": value}) + "\n")

    def _key(self, value: Any) -> str:
        return digest_of([self._description, value])


class KnownHashes:
    """SHA-256 of files, by path; a file is not read again while its size, timestamps and inode are unchanged."""

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
        """Store new hashes, and forget files that no longer exist; an unwritable cache only costs time."""
        if not self._new:
            return
        merged = {**self._read(), **self._new}
        self._cached.write({key: entry for key, entry in merged.items() if Path(key).exists()})

    def _read(self) -> dict[str, list[object]]:
        return self._cached.read() or {}
