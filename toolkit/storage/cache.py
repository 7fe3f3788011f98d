"""Local disk cache of corpora in object storage: folders that are filled as shards are needed.

A folder, named after the hash of corpus.json, has that file, the tokenizer, packing plans and indexes. The .bin files,
nearly all of a corpus, come and go: all processes of the machine share them, the first process that needs one fetches
it, and the least recently used are evicted. A process that has one open holds a shared lock (flock) on the file
.NAME.lock beside it; a process that fetches or removes one holds an exclusive lock. Each process keeps at most its
share of the cache open, so that there is always something to evict.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

from toolkit.core.errors import CorpusError, SettingsError, UserError
from toolkit.core.files import atomic_write, cache_folder, is_inner_name, unfinished
from toolkit.core.locks import locked_file
from toolkit.storage.objects import download, list_objects, read

_CORPUS_MANIFEST = "corpus.json"
_TOKENIZER = "tokenizer/"
_SHARE_OF_FREE_SPACE = 0.9
# Each takes two file descriptors.
_MOST_OPEN = 256
_SECONDS_BETWEEN_LOOKS = 0.05


class ShardCache:
    """Cache of corpora in object storage, on a disk of this machine below `$XDG_CACHE_HOME`.

    Args:
        most_bytes: limit on the .bin files there, of all processes; None: those present plus 90 % of the free space.
        num_sharers: processes of a run on this machine; each may keep its share of `most_bytes` open.
    """

    def __init__(self, *, most_bytes: int | None, num_sharers: int) -> None:
        self.folder = cache_folder() / "corpora"
        self.folder.mkdir(parents=True, exist_ok=True)
        if most_bytes is None:
            free = shutil.disk_usage(self.folder).free
            most_bytes = sum(size for _, size, _ in self._files()) + int(free * _SHARE_OF_FREE_SPACE)
        self.most_bytes, self.num_sharers = most_bytes, num_sharers
        self._opened: OrderedDict[Path, tuple[Any, _Lock, int]] = OrderedDict()
        self._lock = RLock()

    def corpus(self, url: str) -> "CachedCorpus":
        """Return the corpus at a URL, with its corpus.json and tokenizer in the cache (fetched if absent)."""
        return CachedCorpus(self, url.rstrip("/"))

    def open(self, path: Path, num_bytes: int, fetch: Callable[[Path], None], open_file: Callable[[], Any]) -> Any:
        """Return the result of `open_file` for a .bin file, which `fetch` writes if missing; recent ones stay open."""
        with self._lock:
            if path not in self._opened:
                share = self.most_bytes // self.num_sharers
                while len(self._opened) >= _MOST_OPEN or (self._opened and num_bytes + self._open_bytes() > share):
                    self._opened.popitem(last=False)
                lease = self._leased(path, num_bytes, fetch)
                self._opened[path] = open_file(), lease, num_bytes
            self._opened.move_to_end(path)
            return self._opened[path][0]

    def _open_bytes(self) -> int:
        return sum(size for *_, size in self._opened.values())

    def _leased(self, path: Path, num_bytes: int, fetch: Callable[[Path], None]) -> "_Lock":
        """Return the file's lock, held shared, once the file is there."""
        lock = _Lock(path)
        while True:
            if _is_there(path, num_bytes):
                fcntl.flock(lock, fcntl.LOCK_SH)
                if _is_there(path, num_bytes):
                    os.utime(path)
                    return lock
                fcntl.flock(lock, fcntl.LOCK_UN)
            if not _is_locked_alone(lock):
                # Not a blocking lock: the process that fetched the file keeps its shared lock for long.
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                continue
            try:
                if not _is_there(path, num_bytes):
                    self._reserve(unfinished(path), num_bytes)
                    fetch(path)
            finally:
                # Explicit, as a stored exception would keep `lock` alive, and so locked.
                fcntl.flock(lock, fcntl.LOCK_UN)

    def _reserve(self, place: Path, num_bytes: int) -> None:
        """Evict files until `num_bytes` fit, and reserve the space with a file of that size at `place`."""
        with locked_file(self.folder / ".room.lock"):
            place.unlink(missing_ok=True)  # left by a killed process; not counted beside the file itself
            files = sorted(self._files())
            excess = sum(size for _, size, _ in files) + num_bytes - self.most_bytes
            for _, size, path in files:
                if excess <= 0:
                    break
                excess -= size if _remove(path) else 0
            with place.open("wb") as file:
                file.truncate(num_bytes)

    def _files(self) -> list[tuple[int, int, Path]]:
        """Time of last use (ns), size and path of each .bin file that is there or being fetched."""
        found = []
        for path in (*self.folder.rglob("*.bin"), *self.folder.rglob(".*.bin.partial")):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        return found


class _Lock:
    """Lock of a .bin file, for `flock`; released with the last reference to this object."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(_lock_file(path), os.O_RDWR | os.O_CREAT, 0o666)

    def fileno(self) -> int:
        return self._descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


class CachedCorpus:
    """A corpus in object storage, and its cache folder on this machine."""

    def __init__(self, cache: ShardCache, url: str) -> None:
        self.url, self._cache = url, cache
        try:
            content = read(f"{url}/{_CORPUS_MANIFEST}")
        except UserError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise CorpusError(
                f"no corpus at {url}: {error}\n"
                f"Make one with `toolkit preprocess SOURCE --tokenizer TOK --output {url}`."
            ) from error
        self._objects = {name: found for name, found in list_objects(url).items() if is_inner_name(name)}
        self.folder = cache.folder / hashlib.sha256(content).hexdigest()[:32]
        manifest = self.folder / _CORPUS_MANIFEST
        with locked_file(cache.folder / f".{self.folder.name}.lock"):
            # Written last, and again if it was damaged, or removed by a cleanup of temporary files.
            if not manifest.exists() or manifest.read_bytes() != content:
                self._fetch_tokenizer(content)
                self.folder.mkdir(exist_ok=True)
                atomic_write(manifest, content)

    def size(self, name: str) -> int:
        """Size of a file in bytes; CorpusError if it does not exist, or its name leads out of this folder."""
        if (found := self._objects.get(name)) is None:
            raise CorpusError(f"{self.url}/{name}, which corpus.json names, does not exist. Upload the corpus again.")
        return found.num_bytes

    def fetch_index(self, name: str, sha256: str) -> None:
        """Download a shard's .idx into the folder unless it is there; it is never evicted."""
        size, path = self.size(f"{name}.idx"), self._place(f"{name}.idx")
        if not _is_there(path, size):
            with locked_file(_lock_file(path)):
                if not _is_there(path, size):
                    self._download(f"{name}.idx", path, sha256=sha256)

    def open(self, name: str, sha256: str, open_shard: Callable[[], Any]) -> Any:
        """Return the result of `open_shard`, called with the shard's .bin in the folder; recent ones stay open."""
        cache, size = self._cache, self.size(f"{name}.bin")
        if size * cache.num_sharers > cache.most_bytes:
            raise SettingsError(
                f"the cache of {cache.most_bytes / 1e9:.3g} GB in {cache.folder} is too small: {cache.num_sharers} "
                f"ranks of this machine keep a shard of {self.url} each, of up to {size / 1e9:.3g} GB. Set "
                "run.cache_gb higher, free space there, or set XDG_CACHE_HOME to a larger disk."
            )
        fetch = partial(self._download, f"{name}.bin", sha256=sha256)
        return cache.open(self._place(f"{name}.bin"), size, fetch, open_shard)

    def _place(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _download(self, name: str, path: Path, *, sha256: str) -> None:
        download(f"{self.url}/{name}", path, num_bytes=self.size(name), sha256=sha256)

    def _fetch_tokenizer(self, content: bytes) -> None:
        try:
            hashes = dict(json.loads(content)["tokenizer_files"])
        except (ValueError, LookupError, TypeError):
            raise CorpusError(
                f"{self.url}/{_CORPUS_MANIFEST} is damaged: it names no tokenizer. Upload it again."
            ) from None
        for name, sha256 in hashes.items():
            self.size(f"{_TOKENIZER}{name}")
            self._download(f"{_TOKENIZER}{name}", self._place(f"{_TOKENIZER}{name}"), sha256=sha256)


def _lock_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _is_there(path: Path, num_bytes: int) -> bool:
    try:
        return path.stat().st_size == num_bytes
    except FileNotFoundError:
        return False


def _remove(path: Path) -> bool:
    """Remove a file, or a partial one of a dead process, unless a process has it open or is fetching it."""
    lock = _Lock(path.with_name(path.name.removeprefix(".").removesuffix(".partial")))
    if not _is_locked_alone(lock):
        return False
    path.unlink(missing_ok=True)
    return True


def _is_locked_alone(lock: _Lock) -> bool:
    """Lock a file exclusively; False if another process has it locked."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise SettingsError(
            f"the cache {cache_folder()} cannot be locked (flock): {error.strerror}. Set XDG_CACHE_HOME to a disk of "
            "this machine."
        ) from error
    return True
