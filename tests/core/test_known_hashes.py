"""Hashes of large files are kept, and only as long as the file is the same."""

import os
import time
from pathlib import Path

import pytest

from toolkit.core import cache as cache_module
from toolkit.core.cache import KnownHashes
from toolkit.core.files import hash_file

HOUR = 3600 * 10**9


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read; all of them count as large, and time is an hour on."""
    files: list[Path] = []
    monkeypatch.setattr(cache_module, "_SMALL_BYTES", 1)
    monkeypatch.setattr(cache_module, "hash_file", lambda path: files.append(path) or hash_file(path))
    now = time.time_ns
    monkeypatch.setattr(cache_module.time, "time_ns", lambda: now() + HOUR)
    return files


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that keeps hashes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return KnownHashes()._cached.path


def hash_twice(file: Path) -> str:
    for _ in range(2):
        known = KnownHashes()
        digest = known.hash(file)
        known.save()
    return digest


@pytest.mark.usefixtures("cache")
def test_a_file_is_read_once_while_it_stays_the_same(tmp_path: Path, read: list[Path]) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    assert hash_twice(file) == hash_file(file)
    assert read == [file]
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    time.sleep(0.01)
    file.write_bytes(b"two")
    os.utime(file, ns=times)
    assert hash_twice(file) == hash_file(file), "size and time are those of before"
    assert read == [file] * 2


def test_small_files_and_fresh_ones_are_read_each_time(
    tmp_path: Path, cache: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    monkeypatch.setattr(cache_module, "_SMALL_BYTES", 100)
    hash_twice(file)
    assert not cache.exists()
    monkeypatch.setattr(cache_module, "_SMALL_BYTES", 1)
    monkeypatch.setattr(cache_module, "_SETTLED_NANOSECONDS", 2 * HOUR)
    hash_twice(file)
    assert (len(read), cache.exists()) == (4, False)


def test_a_damaged_cache_costs_time_alone(tmp_path: Path, cache: Path, read: list[Path]) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    cache.parent.mkdir()
    cache.write_text("{")
    assert hash_twice(file) == hash_file(file)
    assert read == [file]
    cache.write_text(cache.read_text().replace(hash_file(file), "0" * 64))
    assert hash_twice(file) == hash_file(file)
    assert read == [file] * 2
    file.unlink()
    (tmp_path / "other").write_bytes(b"two")
    hash_twice(tmp_path / "other")
    assert str(file) not in cache.read_text()
