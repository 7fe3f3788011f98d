"""Groups of sources: which sources each has, where it is written, and its shards under the names of the corpus.

corpus/unfinished.jsonl          what is made, and how; with a step, once the shards of all groups are its own
corpus/groups/00003/             unfinished.jsonl, shard-00000.bin .idx, holdout/
corpus/groups/00003.lock         held by the process that writes the group
corpus/groups/00003.screened/    what is left out of it (screening/documents.py)
corpus/groups/00003.error        why it could not be written; .old-error once another command tries it again
"""

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.core.errors import CorpusError
from toolkit.core.files import PARTIAL_FILES, sync
from toolkit.data import ShardEntry
from toolkit.data.corpus.shards import file_names
from toolkit.preprocess.sources import Source
from toolkit.preprocess.writer.ledger import LEDGER_NAME, Ledger, Place, Step, Tally, begin_ledger, read_ledger

GROUPS_FOLDER, EXCLUDED = "groups", "excluded"
HOLDOUT_FOLDER = "holdout"
SOURCE_GROUP_BYTES = 1 << 30
"""Consecutive sources are gathered until they have so many bytes, and share shards; a larger one is alone.

So many small files do not make as many small shards, and a group is a share of the work that depends on no other."""


@dataclass(frozen=True)
class SourceGroup:
    """Consecutive sources whose documents share shards, with those of no other.

    Attributes:
        recorded: their names in corpus.json.
    """

    number: int
    files: Sequence[Source]
    recorded: Sequence[str]

    @property
    def num_bytes(self) -> int:
        """Size of its sources."""
        return sum(file.num_bytes for file in self.files)

    def __str__(self) -> str:
        first, *more = self.files
        return f"{first.name} and {len(more):,} more" if more else first.name


def groups_of(files: Sequence[Source]) -> list[SourceGroup]:
    """All sources in their groups; one may have none, where all of its are excluded."""
    named, groups = list(zip(files, recorded_names(files), strict=True)), []
    for number, its in enumerate(group_slices([file.num_bytes for file in files])):
        kept = [(file, name) for file, name in named[its] if not file.is_excluded]
        groups.append(SourceGroup(number, [file for file, _ in kept], [name for _, name in kept]))
    return groups


def group_slices(sizes: Sequence[int]) -> list[slice]:
    """Where each group begins and ends among all sources, from their sizes, those of excluded ones too."""
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
    """Names of the sources in corpus.json: by the commit on the hub; here relative to the folder that has all of them.

    The same files in another place hence give the same corpus.json.
    """
    folders = [os.path.join(os.path.dirname(file.name), "") for file in files if not file.revision]
    # The order is bytewise, so that what the first and the last have in common all have. Some may be URLs.
    common = "".join(os.path.commonprefix([folders[0], folders[-1]]).rpartition("/")[:2]) if folders else ""  # noqa: RUF071
    return [_on_hub(file) if file.revision else file.name.removeprefix(common) for file in files]


def _on_hub(file: Source) -> str:
    organisation, name, path = file.name.removeprefix("hub://").split("/", maxsplit=2)
    return f"hub://{organisation}/{name}@{file.revision}/{path}"


def group_folder(corpus: Path, number: int) -> Path:
    """Folder of a group; with the suffix .lock, .screened or .error, what is beside it."""
    return corpus / GROUPS_FOLDER / f"{number:05d}"


def group_ledgers(corpus: Path, *, known: Collection[int] = ()) -> dict[int, Ledger]:
    """Ledgers of the groups that were begun, by number, in order, but those known; a damaged one counts for nothing."""
    folder = corpus / GROUPS_FOLDER
    begun = sorted(int(name) for name in os.listdir(folder) if name.isdigit()) if folder.exists() else []
    ledgers = ((number, read_ledger(group_folder(corpus, number))) for number in begun if number not in known)
    return {number: ledger for number, ledger in ledgers if ledger is not None}


def resume_group(folder: Path, key: Mapping[str, Any], *, why_reference: str) -> Ledger:
    """Keep the finished shards of a locked group, unless they have another key or another backend made them."""
    ledger = read_ledger(folder)
    if ledger is None or ledger.key != key or ledger.why_reference != why_reference:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return begin_ledger(folder, key, why_reference=why_reference)
    kept = ledger_files(folder, ledger)
    for path in {path for pattern in ("shard-*", PARTIAL_FILES) for path in folder.rglob(pattern)} - kept:
        path.unlink()
    # A line that was being written when the process ended is cut off, so that steps can follow.
    os.truncate(folder / LEDGER_NAME, ledger.num_bytes)
    return ledger


def ledger_files(folder: Path, ledger: Ledger) -> set[Path]:
    """Files of the shards that a ledger in this folder names."""
    shards = {folder: ledger.shards, folder / HOLDOUT_FOLDER: ledger.held_out}
    return {path for place, entries in shards.items() for entry in entries for path in file_names(place / entry.name)}


def moves(corpus: Path, groups: Mapping[int, Ledger]) -> Iterator[tuple[list[tuple[Path, Path]], ShardEntry]]:
    """Shards of these groups, then those held out: files as the group has them and as the corpus does, and its entry.

    Names are counted over the whole corpus, which no group knows.
    """
    for place, kind in (("", "shards"), (HOLDOUT_FOLDER, "held_out")):
        written = [(number, entry) for number, ledger in groups.items() for entry in getattr(ledger, kind)]
        for index, (number, entry) in enumerate(written):
            named = replace(entry, name=f"shard-{index:05d}")
            before, after = group_folder(corpus, number) / place / entry.name, corpus / place / named.name
            yield list(zip(file_names(before), file_names(after), strict=True)), named


def merge_groups(corpus: Path, ledger: Ledger, groups: Mapping[int, Ledger], tally: Tally) -> Ledger:
    """Give the shards of all groups the corpus's names, and the corpus the ledger that has them.

    Ended anywhere and called again, it goes on.
    """
    entries = []
    for files, entry in moves(corpus, groups):
        for written, to in files:
            to.parent.mkdir(exist_ok=True)
            if written.exists():
                written.replace(to)
            elif not to.exists():
                raise CorpusError(f"{written} is missing, a file of a finished shard. Start over with --overwrite.")
        entries.append(entry)
    num_shards = sum(len(group.shards) for group in groups.values())
    shards, held_out = tuple(entries[:num_shards]), tuple(entries[num_shards:])
    for folder in (corpus, corpus / HOLDOUT_FOLDER) if held_out else (corpus,):
        sync(folder)
    step = Step(shards=shards, held_out=held_out, place=Place(), tally=tally, is_last=True)
    return begin_ledger(corpus, ledger.key, [step], why_reference=ledger.why_reference)
