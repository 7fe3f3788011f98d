"""Local files behind folders, globs and links: each folder is entered once and each file taken once.

Links may lead in circles, and several names to one file. What is passed over goes into a dictionary of repeats: the
other name, and the name that stays; that is empty where a name begins with a dot or an underscore.
"""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.text import counted, first_few
from toolkit.preprocess.sources.source import extension_of, is_hidden

Repeats = dict[str, str]


def walk(top: str, repeats: Repeats) -> Iterator[tuple[str, list[str]]]:
    """Iterate over the folders from one down, each once, with the names of their files: links last, after own names.

    Names that begin with a dot or an underscore are left out; a link to nothing that may have led to a folder is an
    error.
    """
    seen: dict[tuple[int, int], str] = {}
    roots = [top]
    for root in roots:  # grows: links to folders are added on the way
        for folder, folders, files in os.walk(root, onerror=_raise_unreadable):
            status = status_of(folder)
            own = seen.setdefault((status.st_dev, status.st_ino), folder)
            if own != folder:
                repeats[folder] = own
                folders.clear()
                continue
            repeats |= {os.path.join(folder, name): "" for name in (*folders, *files) if is_hidden(name)}
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            roots += [path for name in folders if os.path.islink(path := os.path.join(folder, name))]
            files[:] = [name for name in files if not is_hidden(name)]
            unknown = (os.path.join(folder, name) for name in files if not extension_of(name))
            for path in filter(is_broken_link, unknown):
                status_of(path)
            yield folder, files


def matches(pattern: str, repeats: Repeats) -> list[str]:
    """Paths that a glob matches, links to nothing included; `**` enters each folder once.

    A folder that cannot be looked into is an error, which `glob` itself would pass over in silence.
    """
    parts = [part for part in pattern.split("/") if part]
    return sorted(set(_expand("/" if pattern.startswith("/") else os.getcwd(), parts, repeats)))


def _expand(folder: str, parts: Sequence[str], repeats: Repeats) -> Iterator[str]:
    if not parts:
        yield folder
    elif parts[0] == "**":
        for inner in (path for path, _ in walk(folder, repeats)) if parts[1:] else (folder,):
            yield from _expand(inner, parts[1:], repeats)
    else:
        for path in _named(folder, parts[0], repeats):
            # A link to nothing may stand for a folder full of matches: whoever opens it will say so.
            if not parts[1:] or is_broken_link(path):
                yield path
            elif os.path.isdir(path):
                yield from _expand(path, parts[1:], repeats)


def _named(folder: str, part: str, repeats: Repeats) -> Iterator[str]:
    """Paths that one part of a pattern names in a folder."""
    if not glob.has_magic(part):
        path = os.path.join(folder, part)
        yield from [path] if os.path.lexists(path) else []
        return
    try:
        with os.scandir(folder):
            pass
    except OSError as error:
        _raise_unreadable(error)
    for name in glob.glob(part, root_dir=folder):
        path = os.path.join(folder, name)
        if is_hidden(name) and not is_hidden(part):
            repeats[path] = ""
        else:
            yield path


def each_once(paths: Iterable[str], repeats: Repeats) -> Iterator[tuple[str, os.stat_result]]:
    """Each file once; of several names that which is no link, then the first bytewise."""
    seen: dict[tuple[int, ...], str] = {}
    for path in sorted(paths, key=lambda path: (os.path.realpath(path) != path, os.fsencode(path))):
        status = status_of(path)
        # Size and time beside the number: network file systems may give one number to two files.
        own = seen.setdefault((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), path)
        if own == path:
            yield path, status
        else:
            repeats[path] = own


def report_repeats(repeats: Repeats) -> None:
    """Print what was passed over, in a line for each reason."""
    if links := [f"{path} is {own}" for path, own in sorted(repeats.items()) if own]:
        console().print(f"Read once, though named again by links: {first_few(links)}.")
    if hidden := [os.path.basename(path) for path, own in sorted(repeats.items()) if not own]:
        console().print(f"Left out {counted(len(hidden), 'name')} beginning with . or _: {first_few(hidden)}.")


def is_broken_link(path: str) -> bool:
    """True if a path is a link to nothing."""
    return os.path.islink(path) and not os.path.exists(path)


def status_of(path: str) -> os.stat_result:
    """Status of a file or folder whose name corpus.json can hold."""
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
