"""Groups of sources: which sources each has, where it is written, and its shards under the corpus's names.

corpus/unfinished/                  exists until the corpus is finished
corpus/unfinished/begun.json        which corpus is being made, and how (begun.py)
corpus/unfinished/00003/            a complete group: group.json, sample.jsonl, shard-00000.bin .idx, holdout/
corpus/unfinished/.00003.*.partial  the same while it is written; the next process removes those of a killed one
corpus/unfinished/00003.screened/   the documents left out of it (screening/documents.py)
corpus/.work/                       which process works on which group, and why a group failed (toolkit.work)
"""

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from toolkit.core.errors import CorpusError
from toolkit.core.files import atomic_directory, sync
from toolkit.core.settings import Record
from toolkit.data import ShardEntry
from toolkit.data.corpus.shards import file_names
from toolkit.preprocess.accounts import Tally
from toolkit.preprocess.sources import Source

UNFINISHED_FOLDER, BEGUN, EXCLUDED = "unfinished", "begun.json", "excluded"
HOLDOUT_FOLDER, _RECORD = "holdout", "group.json"
SOURCE_GROUP_BYTES = 1 << 30
"""Consecutive sources are grouped until they reach this many bytes, and share shards; a larger one is alone.

Many small files thus do not become as many small shards, and a group is a unit of work independent of all others."""


@dataclass(frozen=True)
class SourceGroup:
    """Consecutive sources whose documents share shards, only with one another.

    Attributes:
        recorded: names of the sources in corpus.json.
    """

    number: int
    files: Sequence[Source]
    recorded: Sequence[str]

    @property
    def num_bytes(self) -> int:
        """Total size of its sources."""
        return sum(file.num_bytes for file in self.files)

    def __str__(self) -> str:
        first, *more = [file.name for file in self.files] or [f"group {self.number} (all sources excluded)"]
        return f"{first} and {len(more):,} more" if more else first


def groups_of(files: Sequence[Source]) -> list[SourceGroup]:
    """All sources in their groups; a group is empty if all of its sources are excluded."""
    named, groups = list(zip(files, recorded_names(files), strict=True)), []
    for number, its in enumerate(group_slices([file.num_bytes for file in files])):
        kept = [(file, name) for file, name in named[its] if not file.is_excluded]
        groups.append(SourceGroup(number, [file for file, _ in kept], [name for _, name in kept]))
    return groups


def group_slices(sizes: Sequence[int]) -> list[slice]:
    """Slice of each group in the list of all sources, from the sizes of all sources, including excluded ones."""
    last, num_bytes = {len(sizes) - 1}, 0
    for number, size in enumerate(sizes):
        if size >= SOURCE_GROUP_BYTES and number:
            last.add(number - 1)
        num_bytes += size
        if num_bytes >= SOURCE_GROUP_BYTES:
            last.add(number)
        if number in last:
            num_bytes = 0
    stops = [number + 1 for number in sorted(last)]
    return [slice(*ends) for ends in zip([0, *stops], stops, strict=False)]


def recorded_names(files: Sequence[Source]) -> list[str]:
    """Names of the sources in corpus.json: with the commit if on the hub, else relative to their common folder.

    The same files in another place thus give the same corpus.json.
    """
    folders = [os.path.join(os.path.dirname(file.name), "") for file in files if not file.revision]
    # The order is bytewise, so a common prefix of the first and the last is common to all. Some may be URLs.
    common = "".join(os.path.commonprefix([folders[0], folders[-1]]).rpartition("/")[:2]) if folders else ""  # noqa: RUF071
    return [_on_hub(file) if file.revision else file.name.removeprefix(common) for file in files]


def _on_hub(file: Source) -> str:
    organisation, name, path = file.name.removeprefix("hub://").split("/", maxsplit=2)
    return f"hub://{organisation}/{name}@{file.revision}/{path}"


class WrittenGroup(Record):
    """Record of a finished group."""

    key: dict[str, Any]
    """What its shards depend on that may change while the corpus is made: which backend, and what is left out."""
    shards: Annotated[tuple[ShardEntry, ...], Field(strict=False)]
    """Shards of the corpus."""
    held_out: Annotated[tuple[ShardEntry, ...], Field(strict=False)]
    """Shards of the holdout."""
    tally: Tally
    """Counts over its rows."""

    @property
    def num_shards(self) -> int:
        """Number of shards of both kinds."""
        return len(self.shards) + len(self.held_out)


def is_unfinished(corpus: Path) -> bool:
    """True if a corpus is started and not finished."""
    return (corpus / UNFINISHED_FOLDER / BEGUN).exists()


def group_folder(corpus: Path, number: int) -> Path:
    """Folder of a group; with the suffix .screened, the one for what is left out of it."""
    return corpus / UNFINISHED_FOLDER / f"{number:05d}"


@contextmanager
def new_group(folder: Path) -> Iterator[Path]:
    """Yield a folder that becomes the group's folder when the block ends; the caller holds the group's lock."""
    # Results of another backend, or leftovers of a killed process.
    for left in (folder, *folder.parent.glob(f".{folder.name}.*.partial")):
        shutil.rmtree(left, ignore_errors=True)
    with atomic_directory(folder) as unfinished:
        yield unfinished


def note_written(folder: Path, written: WrittenGroup) -> None:
    """Put the record of a group beside its shards."""
    (folder / _RECORD).write_text(written.model_dump_json(), encoding="utf-8")


def written_groups(corpus: Path, *, known: Collection[int] = ()) -> dict[int, WrittenGroup]:
    """Written groups by number, in order, except the known ones; damaged ones are ignored."""
    names, found = list[str](), dict[int, WrittenGroup]()
    with suppress(FileNotFoundError):  # the corpus was finished meanwhile
        names = os.listdir(corpus / UNFINISHED_FOLDER)
    for number in sorted(int(name) for name in names if name.isdigit()):
        if number not in known:
            with suppress(OSError, ValidationError):
                content = (group_folder(corpus, number) / _RECORD).read_bytes()
                found[number] = WrittenGroup.model_validate_json(content)
    return found


def merge_groups(
    corpus: Path, groups: Mapping[int, WrittenGroup]
) -> tuple[tuple[ShardEntry, ...], tuple[ShardEntry, ...]]:
    """Rename the shards of all groups for the corpus; return its shards and those held out.

    If interrupted and called again, it resumes. Names are numbered over the whole corpus, which no group knows.
    """
    kinds = []
    for place, kind in (("", "shards"), (HOLDOUT_FOLDER, "held_out")):
        entries = list[ShardEntry]()
        for number, written in groups.items():
            for entry in getattr(written, kind):
                entries.append(replace(entry, name=f"shard-{len(entries):05d}"))
                _move(group_folder(corpus, number), place, entry.name, to=corpus / place / entries[-1].name)
        if entries:
            sync(corpus / place)
        kinds.append(tuple(entries))
    shards, held_out = kinds
    return shards, held_out


def _move(group: Path, place: str, name: str, *, to: Path) -> None:
    to.parent.mkdir(exist_ok=True)
    for written, named in zip(file_names(group / place / name), file_names(to), strict=True):
        if written.exists():
            written.replace(named)
        elif not named.exists():
            raise CorpusError(
                f"{written} is missing, a file of a finished shard. Remove the folder {group}: the same command writes "
                "that group again."
            )
