"""Finding sources: names from the command line -> files, in the one order that determines the corpus."""

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tokenization.hub import HubName
from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.text import counted, first_few, home_hint, quoted
from toolkit.data import CORPUS_MANIFEST
from toolkit.preprocess.sources.hub import find_on_hub, parse_hub_name
from toolkit.preprocess.sources.source import (
    METADATA,
    READABLE,
    Source,
    format_of,
    is_hidden,
    report_other_kinds,
    report_splits,
)
from toolkit.preprocess.sources.walk import each_once, matches, report_repeats, status_of, walk
from toolkit.remote import is_url, list_objects


def find_sources(
    named: Sequence[str], *, subset: str | None = None, exclude: Sequence[str] = (), output: Path | None = None
) -> list[Source]:
    """The files behind paths, folders, globs, URLs and data sets on the hub: each once, bytewise by name.

    A folder stands for the readable files below it, at any depth and behind links. What is left out is reported: names
    that begin with a dot or an underscore, metadata of known tools, files of other kinds. A file with several names
    (links) is read once, under its own name. A name that is both here and on the hub is the one here.

    Args:
        subset: configuration of the data sets on the hub among them.
        exclude: globs; sources are left out where one matches their name, a folder of theirs, or the end of their path.
        output: where the result goes; what is in it is not a source, even below a folder that is one.
    """
    found, on_hub, in_storage = _Found(exclude, output), list[HubName](), list[Source]()
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
    if not found.paths and not on_hub and not in_storage:
        raise UserError(f"all sources are in the output folder {output}. Name another folder for the output.")
    sources = {source.name: source for source in (*found.sources(), *in_storage)}
    found.report()
    for data_set in on_hub:
        for source in find_on_hub(data_set, subset=subset):
            if sources.setdefault(source.name, source).revision != source.revision:
                raise UserError(f"{source.name} is named at two revisions; a corpus can hold one. Leave one out.")
    kept = _without_excluded(sources, exclude)
    report_splits(kept)
    return [sources[name] for name in kept]


def _without_excluded(names: Iterable[str], exclude: Sequence[str]) -> list[str]:
    """The names in their order, those left out that a glob matches; reports how many."""
    excluded = {name for name in names if _is_excluded(name, exclude)}
    kept = sorted(set(names) - excluded, key=os.fsencode)
    if not kept:
        raise UserError(f"--exclude {' '.join(exclude)} leaves out all sources ({counted(len(excluded), 'source')}).")
    if exclude:
        console().print(f"Left out by --exclude: {counted(len(excluded), 'source')}.")
    return kept


def _is_excluded(name: str, exclude: Sequence[str]) -> bool:
    path = PurePosixPath(name)
    return any(part.match(glob) for glob in exclude for part in (path, *path.parents))


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
        exclude: globs of files that are left out.
        output: folder whose files are left out, also behind links to it.
        paths: files to read, also those left out; some of them may be the same file.
        other_kinds: files of folders whose format is unknown.
        metadata: files of folders that known tools put beside the text.
        repeats: what is passed over; see `walk`.
    """

    exclude: Sequence[str]
    output: Path | None
    paths: set[str] = field(default_factory=set)
    other_kinds: set[str] = field(default_factory=set)
    metadata: set[str] = field(default_factory=set)
    repeats: dict[str, str] = field(default_factory=dict)

    def add(self, name: str) -> None:
        path = os.path.abspath(name)
        if os.path.isfile(path):
            if format_of(path) is None:
                raise UserError(f"unknown format: {path}. Give files that end in {READABLE}.")
            if not self._is_own(path):
                self.paths.add(path)
        elif os.path.isdir(path):
            self._add_folder(path)
        elif os.path.lexists(path):
            status_of(path)  # says where a link to nothing leads
            raise UserError(f"the source {name} is neither a file nor a folder. Give one of the two.")
        elif found := matches(name, self.repeats):
            self.metadata |= {match for match in found if os.path.basename(match) in METADATA}
            for match in sorted({*found} - self.metadata):
                self.add(match)
        else:
            raise UserError(
                f"no file matches {name!r}. Give a pattern that does, or name files and folders.{home_hint(name)}"
            )

    def _is_own(self, path: str) -> bool:
        return self.output is not None and os.path.realpath(path).startswith(
            os.path.join(os.path.realpath(self.output), "")
        )

    def sources(self) -> Iterator[Source]:
        for path, status in each_once(self.paths, self.repeats):
            file_format = format_of(path)
            assert file_format is not None
            yield Source(path, file_format, status.st_size, str(status.st_mtime_ns))

    def report(self) -> None:
        if self.metadata:
            names = first_few(sorted({os.path.basename(file) for file in self.metadata}))
            console().print(f"Left out {counted(len(self.metadata), 'file')} of metadata: {names}.")
        report_other_kinds(self.other_kinds)
        report_repeats(self.repeats)

    def _add_folder(self, path: str) -> None:
        inside = {os.path.join(folder, name) for folder, files in walk(path, self.repeats) for name in files}
        own = {file for file in inside if self._is_own(file)}
        excluded = {file for file in inside if _is_excluded(file, self.exclude)}
        _check_no_other_data(inside - own - excluded)
        # A pipe or a socket would be waited for.
        readable = {file for file in inside if format_of(file) is not None and stat.S_ISREG(status_of(file).st_mode)}
        if not readable:
            held = (
                f"has no supported files, but {counted(len(inside), 'file')} of other kinds" if inside else "is empty"
            )
            raise UserError(f"the folder {path} {held}. Give one with files that end in {READABLE}.")
        metadata = {file for file in readable if os.path.basename(file) in METADATA}
        self.paths |= readable - metadata - own
        self.metadata |= metadata - own - excluded
        self.other_kinds |= inside - readable - own - excluded


def _check_no_other_data(files: Iterable[str]) -> None:
    """Raise a UserError where there are data in another form than text, of this toolkit or of another one."""
    for file in sorted(files):
        folder, name = os.path.split(file)
        if name.endswith(".idx") or (name == CORPUS_MANIFEST and os.path.isdir(os.path.join(folder, "tokenizer"))):
            remedy = "It holds tokens: train on it (data.train), or give the texts that it was made from"
        elif name.endswith(".arrow"):
            load = f"load_from_disk({folder!r}).to_parquet({folder + '.parquet'!r})"
            remedy = f'Arrow files of `datasets` are not read: python -c "from datasets import load_from_disk; {load}"'
        elif name.endswith((".mds", ".mds.zstd")):
            remedy = "Shards of MosaicML Streaming are not read: write their texts as JSON lines or Parquet"
        else:
            continue
        raise UserError(f"no text in {folder}: it has {name}. {remedy}; or leave it out (--exclude {quoted(folder)}).")


def _find_in_storage(url: str) -> Iterator[Source]:
    """The readable files that a URL stands for: one, those below it, or those that its glob matches."""
    fixed, pattern = url.rstrip("/"), ""
    if glob.has_magic(url) and "" not in list_objects(url):
        fixed = url[: url.rindex("/", 0, re.search(r"[*?[]", url).start())]  # type: ignore[union-attr]
        pattern = url.removeprefix(f"{fixed}/")
    objects = list_objects(fixed, pattern=pattern)
    shown = {name: found for name, found in objects.items() if not is_hidden(name)}
    readable = {name: kind for name in shown if (kind := format_of(name or fixed)) is not None}
    readable = {name: kind for name, kind in readable.items() if name.rpartition("/")[2] not in METADATA}
    if not readable:
        raise UserError(
            f"no source at {url}: {counted(len(objects), 'object')} there, none of which can be read. Give files that "
            f"end in {READABLE}, or a place with some."
        )
    report_repeats(dict.fromkeys(objects.keys() - shown.keys(), ""))
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
