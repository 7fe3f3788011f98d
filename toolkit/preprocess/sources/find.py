"""Source discovery: names from the command line -> files, in the one order that determines the corpus."""

import glob
import os
import re
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path, PurePosixPath

from tokenization.hub import HubName
from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.text import counted, first_few, home_hint, quoted
from toolkit.data import CORPUS_MANIFEST
from toolkit.preprocess.sources.hub import find_on_hub, parse_hub_name
from toolkit.preprocess.sources.source import (
    HIDDEN,
    METADATA,
    METADATA_FILES,
    OTHER_KIND,
    READABLE,
    LeftOut,
    Source,
    format_of,
    is_hidden,
    kinds_of,
    report_left_out,
    report_splits,
)
from toolkit.preprocess.sources.walk import each_once, matches, status_of, walk
from toolkit.storage import is_url, list_objects


def find_sources(
    named: Sequence[str], *, subset: str | None = None, exclude: Sequence[str] = (), output: Path | None = None
) -> list[Source]:
    """The files named by paths, folders, globs, URLs and data sets on the hub: each once, in bytewise order of name.

    A folder stands for the readable files below it, at any depth and through links. What is left out is reported: names
    that begin with a dot or an underscore, metadata of known tools, files of other kinds. A file with multiple names
    (links) is read once, under its own name. A name that exists both locally and on the hub is the local one.

    Args:
        subset: configuration of the hub data sets among them.
        exclude: globs; a source is excluded if one matches its name, one of its folders, or the end of its path.
        output: folder of the result; files in it are not sources, even below a source folder. Without it, the sources
            are test files, whose splits are not reported.
    """
    found, on_hub = _Found(exclude, output), list[HubName]()
    for name in named:
        if is_url(name):
            found.add_url(name)
        elif hub_name := _hub_name(name):
            on_hub.append(hub_name)
        else:
            found.add(name)
    if subset is not None and not on_hub:
        raise UserError(
            f"--subset {subset} names a part of a data set on the hub, and none of the sources is one: "
            f"{', '.join(named)}. Leave it out, or name the data set (fineweb-edu, or organisation/name)."
        )
    if not found.paths and not on_hub and not found.in_storage:
        raise UserError(
            f"no text in {first_few(named)}: what is there is metadata, or in the output folder. Name other sources, "
            "or another folder for the output."
        )
    sources = found.sources()
    for data_set in on_hub:
        for source in find_on_hub(data_set, subset=subset):
            if sources.setdefault(source.name, source).revision != source.revision:
                raise UserError(f"{source.name} is named at two revisions; a corpus can hold one. Leave one out.")
    report_left_out({path: why for path, why in found.left_out.items() if not found.is_own(path)})
    marked = _with_excluded(sources, exclude)
    if output is not None:
        report_splits(marked)
    return marked


def _with_excluded(sources: Mapping[str, Source], exclude: Sequence[str]) -> list[Source]:
    """The sources in order, with those that a glob excludes marked; reports how many."""
    excluded = {name for name in sources if _is_excluded(name, exclude)}
    if len(excluded) == len(sources):
        raise UserError(f"--exclude {' '.join(exclude)} leaves out all sources ({counted(len(excluded), 'source')}).")
    if exclude:
        console().print(f"Left out by --exclude: {counted(len(excluded), 'source')}.")
    names = sorted(sources, key=os.fsencode)
    return [replace(sources[name], is_excluded=name in excluded) for name in names]


def _is_excluded(name: str, exclude: Sequence[str]) -> bool:
    path = PurePosixPath(name) if exclude else PurePosixPath()
    return any(part.match(glob) for glob in exclude for part in (path, *path.parents))


def no_documents_error(skipped: Mapping[str, int]) -> UserError:
    """The error for sources without any document; `skipped` counts their rows by reason."""
    reasons = ", ".join(f"{reason}: {counted(count, 'row')}" for reason, count in skipped.items()) or "no rows"
    return UserError(
        f"no document in the sources: {reasons}. Give some with text, or name the field that holds it (--text-field)."
    )


@dataclass
class _Found:
    """Files that were found.

    Attributes:
        exclude: globs of files that are left out.
        output: folder whose files are left out, also through links to it.
        paths: local files to read, including excluded ones; some of them may be the same file.
        in_storage: files in object storage.
        left_out: names that are passed over.
    """

    exclude: Sequence[str]
    output: Path | None
    paths: set[str] = field(default_factory=set)
    in_storage: list[Source] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=dict)

    def add(self, name: str) -> None:
        path = os.path.abspath(name)
        if os.path.isfile(path):
            if format_of(path) is None:
                raise UserError(f"unknown format: {path}. Give files that end in {READABLE}.")
            if not self.is_own(path):
                self.paths.add(path)
        elif os.path.isdir(path):
            self._add_folder(path)
        elif os.path.lexists(path):
            status_of(path)  # raises for a broken link, with its target
            raise UserError(f"the source {name} is neither a file nor a folder. Give one of the two.")
        elif found := matches(name, self.left_out):
            metadata = {match for match in found if os.path.basename(match) in METADATA_FILES}
            self.left_out |= dict.fromkeys(metadata, METADATA)
            for match in found:
                if match not in metadata:
                    self.add(match)
        else:
            raise UserError(
                f"no file matches {name!r}. Give a pattern that does, or name files and folders.{home_hint(name)}"
            )

    def add_url(self, url: str) -> None:
        """Add the readable files of a URL: one file, those below it, or those that its glob matches."""
        fixed, pattern = url.rstrip("/"), ""
        if glob.has_magic(url) and "" not in list_objects(url):
            fixed = url[: url.rindex("/", 0, re.search(r"[*?[]", url).start())]  # type: ignore[union-attr]
            pattern = url.removeprefix(f"{fixed}/")
        objects = list_objects(fixed, pattern=pattern)
        found = {f"{fixed}/{name}" if name else fixed: entry for name, entry in objects.items()}
        hidden = {name for name in found if is_hidden(name.removeprefix(fixed))}
        self.left_out |= dict.fromkeys(hidden, HIDDEN)
        self.in_storage += [
            Source(name, kind, found[name].num_bytes, found[name].version)
            for name in self._readable(url, found.keys() - hidden, named=fixed)
            if (kind := format_of(name))
        ]

    def is_own(self, path: str) -> bool:
        """True if a path is in the output folder."""
        return self.output is not None and os.path.realpath(path).startswith(
            os.path.join(os.path.realpath(self.output), "")
        )

    def sources(self) -> dict[str, Source]:
        """All sources by name, each file once."""
        local = [
            Source(path, kind, status.st_size, str(status.st_mtime_ns))
            for path, status in each_once(self.paths, self.left_out)
            if (kind := format_of(path))
        ]
        return {source.name: source for source in (*local, *self.in_storage)}

    def _add_folder(self, path: str) -> None:
        files = {os.path.join(folder, name) for folder, names in walk(path, self.left_out) for name in names}
        inside = {file for file in files if not self.is_own(file)}
        # Reading a pipe or a socket would block.
        regular = {file for file in inside if format_of(file) is None or stat.S_ISREG(status_of(file).st_mode)}
        self.left_out |= dict.fromkeys(inside - regular, OTHER_KIND)
        if inside or not files:
            self.paths |= self._readable(f"the folder {path}", regular)

    def _readable(self, place: str, names: Collection[str], *, named: str = "") -> set[str]:
        """Readable files of a folder, or of a place in object storage, including excluded ones; records the others."""
        kept = [name for name in names if not _is_excluded(name, self.exclude)]
        _check_no_other_data(kept)
        metadata = {name for name in names if os.path.basename(name) in METADATA_FILES and name != named}
        readable = {name for name in names if format_of(name)} - metadata
        self.left_out |= {name: METADATA if name in metadata else OTHER_KIND for name in kept if name not in readable}
        if not readable:
            others = f"{counted(len(names), 'file')} of other kinds: {kinds_of(names)}"
            held = f"has no supported files, but {others}" if names else "is empty"
            raise UserError(f"{place} {held}. Give files that end in {READABLE}, or a place with some.")
        return readable


_TOKENS = "It holds tokens: train on it (data.train), or give the texts that it was made from"
_OTHER_DATA = {
    CORPUS_MANIFEST: _TOKENS,
    ".idx": _TOKENS,
    ".arrow": 'Arrow files of `datasets` are not read: python -c "from datasets import load_from_disk; '
    "load_from_disk({0!r}).to_parquet({0!r} + '.parquet')\"",
    ".mds": "Shards of MosaicML Streaming are not read: write their texts as JSON lines or Parquet",
}


def _check_no_other_data(names: Iterable[str]) -> None:
    """Raise a UserError for a folder with data in a form other than text; a stray file beside text is no error."""
    folders = defaultdict[str, set[str]](set)
    for folder, _, file in (name.rpartition("/") for name in names):
        folders[folder].add(file)
    for folder, files in sorted(folders.items()):
        has_shards = f"{folder}/tokenizer" in folders or any(file.endswith(".idx") for file in files)
        is_corpus = CORPUS_MANIFEST in files and has_shards
        if not is_corpus and any(map(format_of, files - METADATA_FILES)):
            continue
        for file, (ending, remedy) in product(sorted(files), _OTHER_DATA.items()):
            if file.removesuffix(".zstd").endswith(ending):
                way = f"{remedy.format(folder)}; or leave it out (--exclude {quoted(folder)})"
                raise UserError(f"no text in {folder}: it has {file}. {way}.")


def _hub_name(name: str) -> HubName | None:
    """The hub data set that a name stands for; None if it stands for something local."""
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
