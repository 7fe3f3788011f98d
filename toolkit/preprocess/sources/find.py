"""From what the user named to the files to read, in the one order that decides the corpus."""

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from toolkit.core.errors import UserError
from toolkit.core.text import counted, home_hint
from toolkit.preprocess.sources.hub import find_on_hub, is_hub_name
from toolkit.preprocess.sources.source import ENDINGS, Format, Source


def find_sources(named: Sequence[str], *, subset: str | None = None, output: Path | None = None) -> list[Source]:
    """The files behind paths, folders, globs and data sets on the hub: each once, bytewise by name.

    A folder stands for the readable files below it, at any depth; names that begin with a dot are left out. A name
    that is both here and on the hub is the one here.

    Args:
        named: what the user gave.
        subset: configuration of the data sets on the hub among them.
        output: where the result goes; what lies in it is no source, though it lie in a folder that is one.

    Raises:
        UserError: nothing is there, a file's format is unknown, or the hub does not give what is asked.
    """
    local: list[str] = []
    on_hub: list[str] = []
    for name in named:
        paths = _paths(name)
        if paths is None:
            on_hub.append(name)
        else:
            local += paths
    if subset is not None and not on_hub:
        raise UserError(
            f"--subset {subset} names a part of a data set on the hub, and none of the sources is one: "
            f"{', '.join(named)}. Leave it out, or name the data set (fineweb-edu, or organisation/name)."
        )
    if output is not None:
        own = os.path.join(os.path.abspath(output), "")
        local = [path for path in local if not path.startswith(own)]
        if not local and not on_hub:
            raise UserError(f"All sources lie in the output folder {output}. Name another folder for the output.")
    sources = {path: _source(path) for path in set(local)}
    for name in on_hub:
        _add_from_hub(sources, name, subset)
    return [sources[name] for name in sorted(sources, key=os.fsencode)]


def no_documents_error(files: Sequence[Source], skipped: Mapping[str, int]) -> UserError:
    """The error for sources in which nothing is a document.

    Args:
        files: what was read.
        skipped: by reason, how many rows were none.
    """
    what = files[0].name if len(files) == 1 else f"{len(files):,} files"
    reasons = ", ".join(f"{reason}: {counted(count, 'row')}" for reason, count in skipped.items()) or "no row at all"
    return UserError(
        f"There is no document in {what}: {reasons}. "
        "Give sources with text, or name the field that holds it (--text-field)."
    )


def _add_from_hub(sources: dict[str, Source], name: str, subset: str | None) -> None:
    for file in find_on_hub(name, subset=subset):
        found = f"hub://{file.repository}/{file.path}"
        source = Source(found, Format.PARQUET, file.num_bytes, file.version, file.commit)
        if sources.setdefault(found, source).revision != file.commit:
            raise UserError(
                f"{file.repository} is named at two revisions, and one corpus can hold one of them. Leave one out."
            )


def _paths(name: str) -> Iterable[str] | None:
    """The files that a name stands for here; None if it can only be a data set on the hub."""
    if not name:
        raise UserError("One of the sources is an empty text. Give files, folders, globs or data sets on the hub.")
    path = os.path.abspath(name)
    if os.path.isfile(path):
        _check_format(path)
        return [path]
    if os.path.isdir(path):
        return _folder(path)
    if glob.has_magic(name):
        matches = [match for match in glob.glob(name, recursive=True) if os.path.exists(match)]
        if not matches:
            raise UserError(
                f"The pattern {name!r} matches no file. Give one that does, or name files and folders.{home_hint(name)}"
            )
        return [inner for match in matches for inner in _paths(match) or ()]
    if os.path.exists(path):
        raise UserError(f"The source {name} is neither a file nor a folder. Give one of the two.")
    if is_hub_name(name) and not name.endswith(tuple(ENDINGS)):
        return None
    raise UserError(
        f"There is no file or folder {name!r}.{home_hint(name)} Give files, folders or globs of {', '.join(ENDINGS)}, "
        "or a data set on the hub: fineweb-edu, or organisation/name."
    )


def _folder(path: str) -> list[str]:
    inside = list(_walk(path))
    readable = [file for file in inside if file.endswith(tuple(ENDINGS))]
    if not readable:
        held = f"holds {counted(len(inside), 'file')} of other kinds" if inside else "is empty"
        raise UserError(f"The folder {path} {held}. Give one with files that end in {', '.join(ENDINGS)}.")
    return readable


def _walk(path: str) -> Iterator[str]:
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(folder, name) for name in files if not name.startswith("."))


def _check_format(path: str) -> None:
    if not path.endswith(tuple(ENDINGS)):
        raise UserError(f"The format of {path} is unknown. Give files that end in {', '.join(ENDINGS)}.")


def _source(path: str) -> Source:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"The name of the source {os.fsencode(path)!r} is not UTF-8, and corpus.json could not hold it. "
            "Rename the file."
        ) from error
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(
            f"The source {path} cannot be read: {error.strerror}. Allow access to it, or leave it out."
        ) from error
    ending = max((ending for ending in ENDINGS if path.endswith(ending)), key=len)
    return Source(path, ENDINGS[ending], status.st_size, str(status.st_mtime_ns))
