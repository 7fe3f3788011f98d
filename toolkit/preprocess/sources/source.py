"""A source: one file to read, and the format that its name implies."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from toolkit.core.console import console
from toolkit.core.text import counted, first_few


class Format(StrEnum):
    """Content of a file, by the extension of its name."""

    PARQUET = ".parquet"
    JSON_LINES = ".jsonl"
    JSON = ".json"
    CSV = ".csv"
    TSV = ".tsv"
    TEXT = ".txt"


class Compression(StrEnum):
    """Compression of a file, by the extension after the one of its format."""

    GZIP = ".gz"
    ZSTD = ".zst"
    BZIP2 = ".bz2"
    XZ = ".xz"


_FORMATS = {kind.value: kind for kind in Format} | {".ndjson": Format.JSON_LINES}

READABLE = f"{', '.join(_FORMATS)}, the text formats also compressed ({', '.join(Compression)})"
"""The extensions of readable files, for messages."""


@dataclass(frozen=True)
class Source:
    """A file to read.

    Attributes:
        name: absolute path, URL, or hub://repository/path.
        version: changes with the content: modification time of a local file, hash of a file on the hub.
        revision: commit at which a file on the hub is read.
        is_excluded: whether --exclude leaves it out. It keeps its place among the others, which determines the groups.
    """

    name: str
    format: Format
    num_bytes: int
    version: str
    revision: str = ""
    is_excluded: bool = False

    @property
    def compression(self) -> Compression | None:
        """Compression of the file."""
        return compression_of(self.name)


def compression_of(name: str) -> Compression | None:
    """Compression of a file by its name, ignoring case."""
    extension = os.path.splitext(name)[1].lower()
    return Compression(extension) if extension in list(Compression) else None


def extension_of(name: str) -> str:
    """The part of a file's name that tells its format, in lower case: ".jsonl", ".tar.gz"; "" without an extension."""
    compression = compression_of(name) or ""
    return os.path.splitext(name[: len(name) - len(compression)])[1].lower() + compression


def format_of(name: str) -> Format | None:
    """The format of a file by its name; None if unsupported. Parquet is compressed internally."""
    extension = extension_of(name)
    known = _FORMATS.get(extension.removesuffix(compression_of(name) or ""))
    return None if known is Format.PARQUET and extension != known else known


METADATA_FILES = {
    "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "index.json", "state.json", "stats.json",
}  # fmt: skip
"""Files that datasets, MosaicML Streaming and datatrove put beside the text."""


def is_hidden(path: str) -> bool:
    """True if a name in a path begins with a dot or, like unfinished output of Spark, with an underscore."""
    return re.search(r"(^|/)[._]", path) is not None


_SPLIT_WORDS = {
    "validation": "validation|valid|dev|val", "test": "test|testing|eval|evaluation", "train": "train|training",
}  # fmt: skip


def split_of(path: str) -> str | None:
    """The split in a path by the convention of `datasets`: in its folders, else in its file name; None if none."""
    folder, _, name = path.rpartition("/")
    for part in (folder, name):
        for split, words in _SPLIT_WORDS.items():
            if re.search(rf"(?:^|[-._ 0-9/])(?:{words})(?:[-._ 0-9/]|$)", part):
                return split
    return None


def report_splits(sources: Collection[Source]) -> None:
    """Print which sources are named as test or validation splits, if not all are."""
    names = [source.name for source in sources if not source.is_excluded]
    common = os.path.dirname(os.path.commonprefix([f"{name}/" for name in names]))  # noqa: RUF071
    held_out = [name for name in names if split_of(name.removeprefix(common)) in ("test", "validation")]
    if 0 < len(held_out) < len(names):
        shown = first_few([name.removeprefix(common).lstrip("/") for name in held_out])
        console().print(
            f"{counted(len(held_out), 'source')} of {len(names):,} named as a test or validation split, read as any "
            f"other: {shown}. To leave such out: --exclude GLOB."
        )


def kinds_of(names: Iterable[str]) -> str:
    """The most frequent kinds of files, each with its count."""
    kinds = Counter(extension_of(name) or "without an extension" for name in names).most_common()
    return first_few([f"{count:,} {kind}" for kind, count in kinds], most=8)


HIDDEN, METADATA, OTHER_KIND = "beginning with . or _", "of metadata", "of other kinds"
LeftOut = dict[str, str]
"""Names that are passed over, each with one of these reasons; for a link, with the name that is kept."""


def report_left_out(left_out: LeftOut, *, place: str = "") -> None:
    """Print what was passed over, one line per reason; `place` says where, in words."""
    names = defaultdict[str, list[str]](list)
    for path, why in sorted(left_out.items()):
        names[why.partition("/")[0]].append(f"{path} is {why}" if why.startswith("/") else os.path.basename(path))
    if links := names.pop("", []):
        console().print(f"Read once, though named again by links: {first_few(links)}.")
    for why, its in names.items():
        number = counted(len(its), "name" if why == HIDDEN else "file")
        shown = kinds_of(its) if why == OTHER_KIND else first_few(list(dict.fromkeys(its)))
        console().print(f"Left out {number} {why}{place}: {shown}.")
