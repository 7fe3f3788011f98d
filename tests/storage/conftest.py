from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from toolkit.storage import objects


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(objects, "WAITS_SECONDS", (0, 0))


@pytest.fixture
def bucket() -> Iterator[str]:
    """The URL of a store in this process's memory, empty before and after."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    yield "memory://bucket"
    store.store.clear()
