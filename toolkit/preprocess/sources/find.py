"""Finding sources: names from the command line -> files, in the one order that determines the corpus."""

import glob
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenization.hub import HubName
from toolkit.core.errors import UserError
from toolkit.core.text import counted, home_hint
from toolkit.preprocess.sources.hub import find_on_hub, parse_hub_name
from toolkit.preprocess.sources.source import READABLE, Source, format_of, report_other_kinds
from toolkit.preprocess.sources.walk import each_once, matches, report_repeats, status_of, walk
from toolkit.remote import is_url, list_objects


def find_sources(named: Sequence[str], *, subset: str | None = None, output: Path | None = None) -> list[Source]:
    """The files behind paths, folders, globs, URLs and data sets on the hub: each once, bytewise by name.

    A folder stands for the readable files below it, at any depth and behind links; names that begin with a dot are left
    out, and files of other kinds are left out and reported. A file with several names (links) is read once, under its
    own name. A name that is both here and on the hub is the one here.

    Args:
        subset: configuration of the data sets on the hub among them.
        output: where the result goes; what is in it is not a source, even below a folder that is one.
    """
    found, on_hub, in_storage = _Found(), list[HubName](), list[Source]()
    for name in named:
        if is_url(name):
            in_storage += _find_in_storage(name)
        elif hub_name := _hub_name(name):
            on_hub.append(hub_name)
        else:
            found.add(name)
    if subset is not None and not on_hub:
        raise UserError(
            f"--subset {subset} names a part of a data set on the hub, and none of the sources is one: "
            f"{', '.join(named)}. Leave it out, or name the data set (fineweb-edu, or organisation/name)."
        )
    if output is not None:
        found.leave_out(output)
        if not found.paths and not on_hub and not in_storage:
            raise UserError(f"all sources are in the output folder {output}. Name another folder for the output.")
    sources = {source.name: source for source in (*found.sources(), *in_storage)}
    found.report()
    for data_set in on_hub:
        for source in find_on_hub(data_set, subset=subset):
            if sources.setdefault(source.name, source).revision != source.revision:
                raise UserError(f"{source.name} is named at two revisions; a corpus can hold one. Leave one out.")
    return [sources[name] for name in sorted(sources, key=os.fsencode)]


def no_documents_error(files: Sequence[Source], skipped: Mapping[str, int]) -> UserError:
    """The error for sources without any document; `skipped` counts their rows by reason."""
    what = files[0].name if len(files) == 1 else f"{len(files):,} files"
    reasons = ", ".join(f"{reason}: {counted(count, 'row')}" for reason, count in skipped.items()) or "no rows"
    return UserError(
        f"no document in {what}: {reasons}. Give sources with text, or name the field that holds it (--text-field)."
    )


@dataclass
class _Found:
    """Local files that were found.

    Attributes:
        paths: files to read; some of them may be the same file.
        other_kinds: files of folders whose format is unknown.
        repeats: links to files and folders (values) that are read already.
    """

    paths: set[str] = field(default_factory=set)
    other_kinds: set[str] = field(default_factory=set)
    repeats: dict[str, str] = field(default_factory=dict)

    def add(self, name: str) -> None:
        path = os.path.abspath(name)
        if os.path.isfile(path):
            if format_of(path) is None:
                raise UserError(f"unknown format: {path}. Give files that end in {READABLE}.")
            self.paths.add(path)
        elif os.path.isdir(path):
            self._add_folder(path)
        elif os.path.lexists(path):
            status_of(path)  # says where a link to nothing leads
            raise UserError(f"the source {name} is neither a file nor a folder. Give one of the two.")
        elif found := matches(name, self.repeats):
            for match in found:
                self.add(match)
        else:
            raise UserError(
                f"no file matches {name!r}. Give a pattern that does, or name files and folders.{home_hint(name)}"
            )

    def leave_out(self, folder: Path) -> None:
        """Leave out what is in a folder, also behind links to it."""
        own = os.path.join(os.path.realpath(folder), "")
        self.paths = {path for path in self.paths if not os.path.realpath(path).startswith(own)}
        self.other_kinds = {path for path in self.other_kinds if not os.path.realpath(path).startswith(own)}

    def sources(self) -> Iterator[Source]:
        for path, status in each_once(self.paths, self.repeats):
            file_format = format_of(path)
            assert file_format is not None
            yield Source(path, file_format, status.st_size, str(status.st_mtime_ns))

    def report(self) -> None:
        report_other_kinds(self.other_kinds)
        report_repeats(self.repeats)

    def _add_folder(self, path: str) -> None:
        inside = {os.path.join(folder, name) for folder, files in walk(path, self.repeats) for name in files}
        # A pipe or a socket would be waited for.
        readable = {file for file in inside if format_of(file) is not None and stat.S_ISREG(status_of(file).st_mode)}
        if not readable:
            held = (
                f"has no supported files, but {counted(len(inside), 'file')} of other kinds" if inside else "is empty"
            )
            raise UserError(f"the folder {path} {held}. Give one with files that end in {READABLE}.")
        self.paths |= readable
        self.other_kinds |= inside - readable


def _find_in_storage(url: str) -> Iterator[Source]:
    """The readable files that a URL stands for: one, those below it, or those that its glob matches."""
    fixed, pattern = url.rstrip("/"), ""
    if glob.has_magic(url):
        fixed = url[: url.rindex("/", 0, re.search(r"[*?[]", url).start())]  # type: ignore[union-attr]
        pattern = url.removeprefix(f"{fixed}/")
    objects = list_objects(fixed, pattern=pattern)
    shown = {name: found for name, found in objects.items() if not re.search(r"(^|/)\.", name)}
    readable = {name: kind for name in shown if (kind := format_of(name or fixed)) is not None}
    if not readable:
        raise UserError(
            f"no source at {url}: {counted(len(objects), 'object')} there, none of which can be read. Give files that "
            f"end in {READABLE}, or a place with some."
        )
    report_other_kinds(shown.keys() - readable.keys(), place=f" at {url}")
    for name, kind in readable.items():
        yield Source(f"{fixed}/{name}" if name else fixed, kind, shown[name].num_bytes, shown[name].version)


def _hub_name(name: str) -> HubName | None:
    """The data set that a name stands for; None if it stands for something here."""
    if not name:
        raise UserError("one of the sources is empty. Give files, folders, globs or data sets on the hub.")
    if os.path.lexists(os.path.abspath(name)) or glob.has_magic(name):
        return None
    if format_of(name) is None and (hub_name := parse_hub_name(name)):
        return hub_name
    raise UserError(
        f"no such file or directory: {name!r}.{home_hint(name)} Give files, folders or globs of {READABLE}; "
        "or a data set on the hub: fineweb-edu, or organisation/name."
    )
