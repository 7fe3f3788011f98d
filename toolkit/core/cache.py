"""Results that are kept from one command to the next, each with a description of all that it depends on."""

import hashlib
import json
from contextlib import suppress
from typing import Any

from toolkit.core.files import atomic_write, cache_folder


class CachedResult:
    """A JSON value in the user's cache folder, at `path`; a folder that cannot be written only costs time."""

    def __init__(self, name: str, description: Any) -> None:
        self._description = description
        self.path = cache_folder() / f"{name}-{digest_of(description)[:16]}.json"

    def read(self) -> Any:
        """The value; None where there is none, or not as it was written."""
        try:
            kept = json.loads(self.path.read_bytes())
            return kept["value"] if kept["key"] == self._key(kept["value"]) else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, value: Any) -> None:
        """Keep a value."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self.path, json.dumps({"key": self._key(value), "value": value}) + "\n")

    def _key(self, value: Any) -> str:
        return digest_of([self._description, value])


def digest_of(description: Any) -> str:
    """SHA-256 of plain data, hexadecimal."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
