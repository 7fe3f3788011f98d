"""Local files named by folders, globs and links: each folder is entered once and each file taken once.

Links may form cycles, and one file may have multiple names.
"""

import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator
from typing import NoReturn

from toolkit.core.errors import UserError
from toolkit.preprocess.sources.source import HIDDEN, LeftOut, extension_of, is_hidden


def walk(top: str, left_out: LeftOut) -> Iterator[tuple[str, list[str]]]:
    """Iterate over the folders from `top` down, each once, with the names of their files; linked folders come last.

    Names that begin with a dot or an underscore are left out; a broken link that may have led to a folder is an error.
    """
    seen: dict[tuple[int, int], str] = {}
    roots = [top]
    for root in roots:  # grows: links to folders are added on the way
        for folder, folders, files in os.walk(root, onerror=_raise_unreadable):
            status = status_of(folder)
            own = seen.setdefault((status.st_dev, status.st_ino), folder)
            if own != folder:
                left_out[folder] = own
                folders.clear()
                continue
            left_out |= {os.path.join(folder, name): HIDDEN for name in (*folders, *files) if is_hidden(name)}
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            roots += [path for name in folders if os.path.islink(path := os.path.join(folder, name))]
            files[:] = [name for name in files if not is_hidden(name)]
            unknown = (os.path.join(folder, name) for name in files if not extension_of(name))
            for path in filter(is_broken_link, unknown):
                status_of(path)
            yield folder, files


def matches(pattern: str, left_out: LeftOut) -> list[str]:
    """Paths that a glob matches, including broken links; `**` enters each folder once.

    An unreadable folder is an error; `glob` itself would silently ignore it.
    """
    found, broken = {"/" if pattern.startswith("/") else os.getcwd()}, set[str]()
    parts = [part for part in pattern.split("/") if part]
    while parts[-1:] == ["**"]:
        parts.pop()
    for number, part in enumerate(parts, start=1):
        found = {path for folder in found for path in _named(folder, part, left_out)}
        if number < len(parts):
            # A broken link may stand for a folder full of matches: its reader will raise an error.
            broken |= set(filter(is_broken_link, found))
            found = set(filter(os.path.isdir, found))
    return sorted(found | broken)


def _named(folder: str, part: str, left_out: LeftOut) -> Iterator[str]:
    """Paths in a folder that match one part of a pattern."""
    if part == "**":
        yield from (inner for inner, _ in walk(folder, left_out))
    elif not glob.has_magic(part):
        path = os.path.join(folder, part)
        yield from [path] if os.path.lexists(path) else []
    else:
        try:
            with os.scandir(folder) as entries:
                names = fnmatch.filter((entry.name for entry in entries), part)
        except OSError as error:
            _raise_unreadable(error)
        hidden = set() if is_hidden(part) else set(filter(is_hidden, names))
        left_out |= {os.path.join(folder, name): HIDDEN for name in hidden}
        yield from (os.path.join(folder, name) for name in names if name not in hidden)


def each_once(paths: Iterable[str], left_out: LeftOut) -> Iterator[tuple[str, os.stat_result]]:
    """Each file once; of its names, the one that is not a link, then the bytewise first."""
    seen: dict[tuple[int, ...], str] = {}
    for path in sorted(paths, key=lambda path: (os.path.realpath(path) != path, os.fsencode(path))):
        status = status_of(path)
        # Size and time in addition to the inode: network file systems may give one inode number to two files.
        own = seen.setdefault((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), path)
        if own == path:
            yield path, status
        else:
            left_out[path] = own


def is_broken_link(path: str) -> bool:
    """True if a path is a broken link."""
    return os.path.islink(path) and not os.path.exists(path)


def status_of(path: str) -> os.stat_result:
    """Status of a file or folder; UserError if corpus.json cannot hold its name, or it is not accessible."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"the name of the source {os.fsencode(path)!r} is not UTF-8, and corpus.json could not hold it. "
            "Rename the file."
        ) from error
    try:
        return os.stat(path)
    except OSError as error:
        if os.path.islink(path):
            raise UserError(
                f"the source {path} is a broken link to {os.readlink(path)}. Mend the link, or remove it."
            ) from error
        raise UserError(
            f"could not read the source {path}: {error.strerror}. Allow access to it, or leave it out."
        ) from error


def _raise_unreadable(error: OSError) -> NoReturn:
    raise UserError(
        f"could not read the folder {error.filename}: {error.strerror}. Allow access to it, or name the sources "
        "without it."
    ) from error
