"""From what the user named to the files to read, in the one order that decides the corpus."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from toolkit.core.errors import NotAvailableError, UserError

__all__ = ["Format", "Source", "find_sources"]

_HUB_NAMES = ("fineweb-edu",)
_LATER = (".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".txt.gz")


class Format(StrEnum):
    """Formats that can be read, by the ending of the file name."""

    JSON_LINES = ".jsonl"
    PARQUET = ".parquet"
    TEXT = ".txt"


@dataclass(frozen=True)
class Source:
    """One file to read.

    Attributes:
        name: as corpus.json names it: its absolute path.
        format: what is in it.
        num_bytes: its size.
        version: what changes when its content does; of a local file, when it was last modified.
    """

    name: str
    format: Format
    num_bytes: int
    version: str

    @property
    def path(self) -> Path:
        """Where a local file is."""
        return Path(self.name)

    @property
    def modified_ns(self) -> int:
        """When a local file was last modified."""
        return int(self.version)


def find_sources(named: Sequence[str], *, subset: str | None = None) -> list[Source]:
    """The files behind paths, folders and globs: each once, bytewise by absolute path.

    A folder stands for the readable files below it, at any depth; names that begin with a dot are left out.

    Args:
        named: what the user gave.
        subset: configuration of the data sets on the hub among them.

    Raises:
        UserError: nothing is there, or a file's format is unknown.
        NotAvailableError: a format or a source that the documentation names and nobody has built yet.
    """
    if subset is not None:
        raise NotAvailableError("--subset")
    found = {path for name in named for path in _paths(name)}
    return [_source(path) for path in sorted(found, key=os.fsencode)]


def _paths(name: str) -> Iterable[str]:
    path = os.path.abspath(name)
    if os.path.isfile(path):
        _check_format(path)
        return [path]
    if os.path.isdir(path):
        return _folder(path)
    if glob.has_magic(name):
        matches = [match for match in glob.glob(name, recursive=True) if os.path.exists(match)]
        if not matches:
            raise UserError(f"The pattern {name!r} matches no file.")
        return [inner for match in matches for inner in _paths(match)]
    if name in _HUB_NAMES:
        raise NotAvailableError(f"The hub source {name!r}")
    if os.path.exists(path):
        raise UserError(f"The source {name} is neither a file nor a folder.")
    raise UserError(
        f"There is no file or folder {name!r}. Give files, folders or globs of "
        f"{', '.join(Format)} (data sets on the hub are not available yet)."
    )


def _folder(path: str) -> list[str]:
    inside = list(_walk(path))
    readable = [file for file in inside if file.endswith(tuple(Format))]
    later = [file for file in inside if file.endswith(_LATER)]
    if later:
        # Left out in silence they would be missing from the corpus.
        raise NotAvailableError(
            f"Reading {_ending(later[0])} files ({later[0]}, in a folder you named; "
            f"a glob such as {os.path.join(path, '*.jsonl')} picks the others)"
        )
    if not readable:
        raise UserError(f"The folder {path} holds no {', '.join(Format)} file ({len(inside)} files of other kinds).")
    return readable


def _walk(path: str) -> Iterator[str]:
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(folder, name) for name in files if not name.startswith("."))


def _ending(path: str) -> str:
    return max((ending for ending in (*_LATER, *Format) if path.endswith(ending)), key=len, default="")


def _check_format(path: str) -> None:
    ending = _ending(path)
    if ending in _LATER:
        raise NotAvailableError(f"Reading {ending} files ({path})")
    if not ending:
        raise UserError(f"The format of {path} is unknown. Files that can be read end in {', '.join(Format)}.")


def _source(path: str) -> Source:
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(f"The source {path} cannot be read: {error.strerror}.") from error
    return Source(path, Format(_ending(path)), status.st_size, str(status.st_mtime_ns))
