"""Progress journals of an unfinished corpus, so that an interrupted run resumes after the last finished shards.

The ledger is a file in the corpus folder that is there as long as the corpus is not finished. Its first line says all
that the shards depend on. Each group of sources has a folder with such a file, where each other line is a step, added
when a shard is finished. That of the corpus has one step, once it has the shards of all groups.
"""

import json
import operator
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from toolkit.core.files import atomic_write
from toolkit.core.settings import Record
from toolkit.core.text import counted, first_few, printable
from toolkit.data import ShardEntry, SourceEntry, TextEntry
from toolkit.preprocess.readers import Reason, Row

LEDGER_NAME = "unfinished.jsonl"
_MOST_NAMED, _MOST_RECORDED = 8, 1000


class BadRow(Record):
    """The first row that was bad for some reason, to show to the user."""

    row: int
    """Counted from 1."""
    found: str


@dataclass
class Counts:
    """Sums over documents: bytes of text as UTF-8, hits of strings of special tokens in it, unknown tokens."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    special_text_hits: int = 0
    unknown_tokens: int = 0

    def plus(self, later: "Counts") -> "Counts":
        """Sums over the documents of both."""
        return Counts(*map(operator.add, astuple(self), astuple(later)))

    def minus(self, earlier: "Counts") -> "Counts":
        """Sums over the documents that came later."""
        return Counts(*map(operator.sub, astuple(self), astuple(earlier)))

    def rates(self, seconds: float) -> str:
        """What they are in each second."""
        documents, megabytes, tokens = (
            number / max(seconds, 1e-9) for number in (self.documents, self.text_bytes / 1e6, self.tokens)
        )
        return f"{documents:,.0f} documents/s, {megabytes:,.1f} MB/s of text, {tokens:,.0f} tokens/s"


@dataclass
class Account(SourceEntry):
    """What one source gave; `first_bad` has the first bad row for each reason."""

    first_bad: dict[str, BadRow] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of all kinds."""
        return self.documents + sum(self.skipped.values())

    @property
    def num_bad(self) -> int:
        """Rows that should have held a text and did not."""
        return sum(count for reason, count in self.skipped.items() if Reason(reason).is_bad)

    @property
    def num_texts(self) -> int:
        """Rows that had a text, with those that were left out on purpose."""
        return self.rows - self.num_bad - self.skipped.get(Reason.EMPTY, 0)

    def skip(self, row: Row, number: int) -> None:
        """Count one row that gives no document, by its number in the source, from 1."""
        assert row.reason is not None
        self.skipped[row.reason] = self.skipped.get(row.reason, 0) + 1
        if row.reason.is_bad and row.reason not in self.first_bad:
            self.first_bad[row.reason] = BadRow(row=number, found=row.found)

    def reasons(self) -> str:
        """The bad rows by reason, each with the first example."""
        return "; ".join(
            printable(f"{counted(self.skipped[reason], 'row')} {reason} (first row {bad.row:,}: {bad.found})")
            for reason, bad in self.first_bad.items()
        )


@dataclass
class Tally:
    """Counts over the rows read so far.

    Attributes:
        kept: those that became documents of the corpus.
        held_out: those that became documents of the holdout.
        sources: the account of each source, by its name in corpus.json.
        text: what the sample says of the text, once all groups are written.
    """

    kept: Counts = field(default_factory=Counts)
    held_out: Counts = field(default_factory=Counts)
    sources: dict[str, Account] = field(default_factory=dict)
    text: TextEntry | None = None

    @property
    def both(self) -> Counts:
        """Those that became documents."""
        return self.kept.plus(self.held_out)

    @property
    def skipped(self) -> dict[str, int]:
        """Rows without a document, by reason."""
        found = Counter[str]()
        for account in self.sources.values():
            found.update(account.skipped)
        return dict(found)

    def entries(self) -> dict[str, SourceEntry]:
        """Entries of corpus.json: of many sources those with the most rows skipped, and one of all others."""
        by_skipped = sorted(self.sources, key=lambda name: -sum(self.sources[name].skipped.values()))
        others, entries = set(by_skipped[_MOST_RECORDED:]), dict[str, SourceEntry]()
        for name, account in self.sources.items():
            entry = entries.setdefault(f"{len(others):,} others" if name in others else name, SourceEntry())
            entry.documents += account.documents
            entry.num_bytes += account.num_bytes
            entry.text_bytes += account.text_bytes
            entry.skipped = dict(sorted((Counter(entry.skipped) + Counter(account.skipped)).items()))
        return entries

    def bad_sources(self) -> list[str]:
        """A line for each source with bad rows; of many, for the first ones, and how many there are."""
        bad = [(name, account) for name, account in self.sources.items() if account.num_bad]
        lines = [printable(name) + f": {account.reasons()}" for name, account in bad[:_MOST_NAMED]]
        return [*lines, f"and {len(bad) - _MOST_NAMED:,} more sources"] if len(bad) > _MOST_NAMED else lines

    def add(self, later: "Tally") -> None:
        """Count those of later sources, too."""
        self.kept, self.held_out = self.kept.plus(later.kept), self.held_out.plus(later.held_out)
        self.sources |= later.sources


class Place(Record):
    """Place in the sources of a group; every row before it is done."""

    source: int = 0
    """Number of the source."""
    span_start: int = 0
    """Where in it the span begins that is being read; see `Span`."""
    rows_before_span: int = 0
    """Rows of the source before that span."""
    rows: int = 0
    """Rows of the source that are done."""


class Step(Record):
    """A line of the ledger: shards that were finished since the line before, and where to resume after them."""

    shards: Annotated[tuple[ShardEntry, ...], Field(strict=False)]
    """Those of the corpus."""
    held_out: Annotated[tuple[ShardEntry, ...], Field(strict=False)]
    """Those of the holdout; the last one is closed together with one of the corpus."""
    place: Place
    """Where to resume."""
    tally: Tally
    """Counts up to there."""
    is_last: bool = False
    """Whether nothing is left to do."""


@dataclass(frozen=True)
class Ledger:
    """Progress of a corpus.

    Attributes:
        key: everything that the shards depend on, as plain data; with another key the shards would be others. That of
            a group says what is left out of it.
        why_reference: why the tokenizer's own backend makes the ids; empty: the fast one does.
        shards: the finished ones of the corpus.
        held_out: the finished ones of the holdout.
        tally: counts up to there.
        is_whole: nothing is left to do.
        num_bytes: size of the file up to the last whole line.
    """

    key: Mapping[str, Any]
    why_reference: str = ""
    shards: tuple[ShardEntry, ...] = ()
    held_out: tuple[ShardEntry, ...] = ()
    place: Place = field(default_factory=Place)
    tally: Tally = field(default_factory=Tally)
    is_whole: bool = False
    num_bytes: int = 0


def begin_ledger(folder: Path, key: Mapping[str, Any], steps: Sequence[Step] = (), *, why_reference: str) -> Ledger:
    """Replace the ledger in `folder`, durably and at once."""
    lines = [json.dumps({"key": key, "why_reference": why_reference}), *(step.model_dump_json() for step in steps)]
    content = "".join(line + "\n" for line in lines).encode()
    atomic_write(folder / LEDGER_NAME, content)
    return _ledger(key, why_reference, steps, num_bytes=len(content))


def key_changes(begun: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Differences between two keys, one line each, sources by name."""
    found = [
        f"{part}: {_shown(begun.get(part))} then, {_shown(wanted.get(part))} now"
        for part in sorted((begun.keys() | wanted.keys()) - {"sources"})
        if begun.get(part) != wanted.get(part)
    ]
    before, now = ({name: rest for name, *rest in key.get("sources", ())} for key in (begun, wanted))
    changes = {
        "modified": [name for name in now if name in before and before[name] != now[name]],
        "new": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
    }
    found += [f"sources: {len(names):,} {what} ({first_few(names)})" for what, names in changes.items() if names]
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def record_step(folder: Path, step: Step) -> None:
    """Add a step to the ledger in `folder`, durably."""
    with (folder / LEDGER_NAME).open("ab") as file:
        file.write(step.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_ledger(folder: Path) -> Ledger | None:
    """The ledger in `folder`; None if there is none or it is damaged (then nothing in it can be relied on)."""
    try:
        header, *lines = (folder / LEDGER_NAME).read_bytes().split(b"\n")
        about = json.loads(header)
        key, why_reference = about["key"], about["why_reference"]
        steps, num_bytes = [], len(header) + 1
        for line in lines[:-1]:  # the rest is a line that was being written
            steps.append(Step.model_validate_json(line))
            num_bytes += len(line) + 1
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return _ledger(key, why_reference, steps, num_bytes=num_bytes)


def _ledger(key: Mapping[str, Any], why_reference: str, steps: Sequence[Step], *, num_bytes: int) -> Ledger:
    if not steps:
        return Ledger(key, why_reference, num_bytes=num_bytes)
    return Ledger(
        key,
        why_reference,
        shards=tuple(entry for step in steps for entry in step.shards),
        held_out=tuple(entry for step in steps for entry in step.held_out),
        place=steps[-1].place,
        tally=steps[-1].tally,
        is_whole=steps[-1].is_last,
        num_bytes=num_bytes,
    )
