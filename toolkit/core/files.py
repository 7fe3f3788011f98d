"""Files and folders that appear whole or not at all, SHA-256 of files, and where shipped and cached files are."""

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

PARTIAL_FILES = ".*.partial"
"""Pattern for what a writer that was killed leaves behind."""

_BLOCK_BYTES = 1 << 20
# Rank 0 of ten thousand has a connection to each, beside mapped shards.
_MOST_DESCRIPTORS = 1 << 16
_PACKAGE = Path(__file__).resolve().parent.parent


def unfinished(path: Path) -> Path:
    """Name of a file until it is complete, if one process at a time writes it."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def atomic_file(path: Path) -> Iterator[BufferedRandom]:
    """A new file, for writing and reading, that takes the place of `path` when the block ends.

    It is forced to the disk before it gets its name. If an error ends the block, what is at `path` stays as it was and
    nothing is left behind. Several processes may write one file at the same time: the last one wins. An OSError names
    `path` where the system names nothing.
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
    """The limit on open files of this process, raised from its soft to its hard value first."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (_MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit for limit in limits)
    wanted = min(hard, _MOST_DESCRIPTORS)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
    return max(soft, wanted)


def atomic_write(path: Path, content: bytes | str) -> None:
    """Replace the content of `path`, or make it; text is written as UTF-8."""
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A new hidden folder that becomes `path`, absent or empty, when the block ends, all of it forced to the disk.

    If an error ends the block, the folder is removed, and so are the folders above it that were made for it.
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
        # From the lowest on; one that holds something by now stays, and so do those above it.
        with suppress(OSError):
            for parent in created:
                parent.rmdir()


def check_folder(folder: Path | str, setting: str) -> None:
    """Refuse a folder to write to that is a file or below one; `setting` names another. Nothing is made."""
    for path in (Path(folder), *Path(folder).parents):
        if path.exists() and not path.is_dir():
            raise UserError(f"{setting}={folder}: {path} is not a directory. Choose another folder ({setting}).")


def sync(path: Path) -> None:
    """Force a file's content, or a folder's entries, to the disk: a rename is not safe before this."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def hash_file(path: Path, *, on_read: Callable[[int], object] | None = None) -> str:
    """SHA-256 of a file, hexadecimal; `on_read` gets the number of bytes of each block as it is read."""
    digest, block = hashlib.sha256(), bytearray(_BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
            if on_read is not None:
                on_read(count)
    return digest.hexdigest()


def hash_folder(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder that is no link, by its path there with `/` between the parts, in order."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in paths}


def is_inner_name(name: str) -> bool:
    """A name that a manifest may give to a file of its folder: printable, relative, `/` between parts, none of them
    empty, `.` or `..`.
    """
    return name.isprintable() and {"", ".", ".."}.isdisjoint(name.split("/"))


def copy_files(source: Path, target: Path, hashes: Mapping[str, str]) -> None:
    """Copy the files of a folder that a manifest names, with their SHA-256; a UserError for another file.

    Links are followed, as DVC and git-annex make them: a link out of the folder can bring no file whose hash the
    manifest does not know, and devices and pipes, which may have no end, are not read.
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
    """The folder for files that can be rebuilt, by the XDG base directory specification.

    A user without a home (a container's bare uid) gets one below the system's temporary folder, where another user may
    have made a folder of that name: then this process gets one of its own.
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
    """A folder below the system's temporary one into which no other user can put files."""
    folder = Path(tempfile.gettempdir()) / name
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if is_ours else Path(tempfile.mkdtemp(prefix=f"{name}-"))


def shipped_folder(name: str) -> Path:
    """The folder `ds_configs` or `launchers`: below the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
