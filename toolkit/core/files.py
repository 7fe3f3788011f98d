"""Atomic writes of files and folders, SHA-256 of files, and locations of shipped and cached files."""

import hashlib
import os
import resource
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedRandom
from pathlib import Path

from toolkit.core.errors import UserError
from toolkit.core.text import home_hint

PARTIAL_FILES = ".*.partial"
"""Glob pattern of files left behind by a killed writer."""

_BLOCK_BYTES = 1 << 20
# Rank 0 of ten thousand has a connection to each, in addition to mapped shards.
_MOST_DESCRIPTORS = 1 << 16
_PACKAGE = Path(__file__).resolve().parent.parent


def unfinished(path: Path) -> Path:
    """Path of a file until it is complete, if only one process at a time writes it."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def atomic_file(path: Path) -> Iterator[BufferedRandom]:
    """A new file, open for writing and reading, that replaces `path` when the block ends.

    It is synced to disk before it is renamed. If the block raises, `path` stays as it was and nothing is left behind.
    Several processes may write the same file at once: the last one wins. An OSError names `path` if the system names
    no file.
    """
    temporary = _partial(path)
    try:
        with temporary.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def descriptor_limit() -> int:
    """Limit on open files of this process, after raising the soft limit to the hard one."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (_MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit for limit in limits)
    wanted = min(hard, _MOST_DESCRIPTORS)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
    return max(soft, wanted)


def atomic_write(path: Path, content: bytes | str) -> None:
    """Create `path`, or replace its content, atomically; text is written as UTF-8."""
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A new hidden folder, synced to disk and renamed to `path` (absent or empty) when the block ends.

    If the block raises, the folder is removed, and so are the parent folders created for it.
    """
    folder = _partial(path.absolute())
    created = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.mkdir(parents=True)
        yield folder
        for inner in (*folder.rglob("*"), folder):
            sync(inner)
        folder.rename(path)
        sync(folder.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        # Deepest first; a folder that is no longer empty stays, and so do those above it.
        with suppress(OSError):
            for parent in created:
                parent.rmdir()


def check_home(path: Path | str, setting: str) -> None:
    """Raise `UserError` if an output begins with `~`, which would be a folder of that name; `setting` is its option."""
    if Path(path).parts[:1] == ("~",):
        raise UserError(f"{setting}={path}:{home_hint(path)}")


def check_folder(folder: Path | str, setting: str) -> None:
    """Raise `UserError` if an output folder is a file or below one, or in a folder named `~`; `setting` is its option.

    Creates nothing.
    """
    check_home(folder, setting)
    for path in (Path(folder), *Path(folder).parents):
        if path.exists() and not path.is_dir():
            raise UserError(f"{setting}={folder}: {path} is not a directory. Choose another folder ({setting}).")


def sync(path: Path) -> None:
    """Sync a file's content, or a folder's entries, to disk: a rename is not safe before this."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def hash_file(path: Path, *, on_read: Callable[[int], object] | None = None) -> str:
    """SHA-256 of a file, hexadecimal; `on_read` is called with the number of bytes of each block read."""
    digest, block = hashlib.sha256(), bytearray(_BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
            if on_read is not None:
                on_read(count)
    return digest.hexdigest()


def hash_folder(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder except symlinks, by relative path with `/` separators, sorted."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in paths}


def is_inner_name(name: str) -> bool:
    """True if a manifest may give this name to a file in its folder: printable, relative, parts separated by `/`, none
    of them empty, `.` or `..`.
    """
    return name.isprintable() and {"", ".", ".."}.isdisjoint(name.split("/"))


def copy_files(source: Path, target: Path, hashes: Mapping[str, str]) -> None:
    """Copy the files that a manifest lists with their SHA-256; raise `UserError` for a file with another hash.

    Symlinks are followed, since DVC and git-annex create them: a link out of the folder cannot bring in a file whose
    hash is not in the manifest. Devices and pipes, which may be endless, are not read.
    """
    for name, expected in hashes.items():
        path, copy = source / name, target / name
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a regular file. Put the file itself there.")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        if (found := hash_file(copy)) != expected:
            copy.unlink()
            raise UserError(
                f"{path} is damaged: expected SHA-256 {expected[:12]}, found {found[:12]}. Copy {source} again."
            )


def cache_folder() -> Path:
    """Folder for files that can be rebuilt, following the XDG base directory specification.

    A user without a home (a bare uid in a container) gets one in the system's temporary folder. If another user has
    already created a folder of that name there, this process gets a folder of its own.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        base = os.path.join(home, ".cache")
        if not os.path.isabs(home):
            return _private_folder(f"encoder-pretraining-toolkit-{os.getuid()}")
    return Path(base) / "encoder-pretraining-toolkit"


@cache
def _private_folder(name: str) -> Path:
    """A folder in the system's temporary folder that no other user can write to."""
    folder = Path(tempfile.gettempdir()) / name
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if is_ours else Path(tempfile.mkdtemp(prefix=f"{name}-"))


def shipped_folder(name: str) -> Path:
    """The folder `ds_configs` or `launchers`: inside the package in a wheel, next to it in a checkout."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
