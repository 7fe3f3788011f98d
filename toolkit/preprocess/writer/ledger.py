"""Progress journal of an unfinished corpus, so that an interrupted run resumes after the last finished shard.

The ledger is a file in the corpus folder that is there as long as the corpus is not finished. Its first line says
all that the shards depend on; each other line is a step, added when a shard is finished.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from toolkit.core.files import atomic_write
from toolkit.core.settings import Settings
from toolkit.core.text import counted, first_few, printable
from toolkit.data import ShardEntry
from toolkit.preprocess.readers import Reason

LEDGER_NAME = "unfinished.jsonl"


class BadRow(Settings):
    """The first row that was bad for some reason, to show to the user."""

    source: str
    row: int
    """Counted from 1."""
    found: str


@dataclass
class Counts:
    """Sums over the documents of one corpus: bytes of text as UTF-8, hits of strings of special tokens in it."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    special_text_hits: int = 0


@dataclass
class ManyLines:
    """Sums over records of several lines, and the longest of them, which has the most lines."""

    records: int = 0
    lines: int = 0
    most: int = 0
    longest: str = ""


@dataclass
class Tally:
    """Counts over the rows read so far.

    Attributes:
        rows: rows of all kinds.
        kept: those that became documents of the corpus.
        held_out: those that became documents of the holdout.
        skipped: the other rows by reason.
        first_bad: the first bad row for each reason.
        many_lines: those that take more than one line of a CSV file.
    """

    rows: int = 0
    kept: Counts = field(default_factory=Counts)
    held_out: Counts = field(default_factory=Counts)
    skipped: dict[str, int] = field(default_factory=dict)
    first_bad: dict[str, BadRow] = field(default_factory=dict)
    many_lines: ManyLines = field(default_factory=ManyLines)

    @property
    def documents(self) -> int:
        """Documents of both corpora."""
        return self.kept.documents + self.held_out.documents

    @property
    def tokens(self) -> int:
        """Tokens of both corpora."""
        return self.kept.tokens + self.held_out.tokens

    @property
    def text_bytes(self) -> int:
        """Bytes of text of both corpora, as UTF-8."""
        return self.kept.text_bytes + self.held_out.text_bytes

    @property
    def num_bad(self) -> int:
        """Rows that should have held a text and did not."""
        return sum(count for reason, count in self.skipped.items() if reason != Reason.EMPTY)

    def skip(self, reason: Reason, *, source: str, row: int, found: str) -> None:
        """Count one row that gives no document; it is row number `row` of `source`."""
        self.rows += 1
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
        if reason is not Reason.EMPTY:
            self.first_bad.setdefault(reason, BadRow(source=source, row=row, found=found))

    def count_lines(self, num_lines: int, *, source: str, row: int) -> None:
        """Count the lines of row number `row` of `source`."""
        if num_lines > 1:
            many = self.many_lines
            many.records, many.lines = many.records + 1, many.lines + num_lines
            if num_lines > many.most:
                many.most, many.longest = num_lines, f"{source} row {row:,}"

    def reasons(self) -> str:
        """The bad rows by reason, one a line, each with the first example."""
        lines = []
        for reason, bad in self.first_bad.items():
            count = self.skipped[reason]
            first = printable(f"{bad.source} row {bad.row:,}: {bad.found}")
            lines.append(f"  {reason}: {counted(count, 'row')}; first {first}")
        return "\n".join(lines)


class Place(Settings):
    """Place of a run in the sources; every row before it is done."""

    source: int = 0
    """Number of the source."""
    span_start: int = 0
    """Where in it the span begins that is being read; see `Span`."""
    rows_before_span: int = 0
    """Rows of the source before that span."""
    rows: int = 0
    """Rows of the source that are done."""


class Step(Settings):
    """A line of the ledger: finished shards, and where to resume after them."""

    shard: ShardEntry | None
    """The shard of the corpus; none if all documents since the last step are held out."""
    held_out: Annotated[tuple[ShardEntry, ...], Field(strict=False)]
    """Those of the holdout since the last step; the last one is closed together with the shard."""
    place: Place
    """Where to resume."""
    tally: Tally
    """Counts up to there."""
    is_fast: bool
    """Whether the fast backend made the shards."""


@dataclass(frozen=True)
class Ledger:
    """Progress of a corpus.

    Attributes:
        key: everything that the shards depend on, as plain data; with another key the shards would be others. None in
            a ledger of version 0.1, which kept a hash.
        reference_only: the fast backend was found to differ; this corpus is made with the reference.
        num_fast: finished shards, of the holdout too, that the fast backend made.
        shards: the finished ones of the corpus.
        held_out: the finished ones of the holdout.
        tally: counts up to there.
        num_bytes: size of the file up to the last whole line.
    """

    key: Mapping[str, Any] | None
    reference_only: bool = False
    num_fast: int = 0
    shards: tuple[ShardEntry, ...] = ()
    held_out: tuple[ShardEntry, ...] = ()
    place: Place = field(default_factory=Place)
    tally: Tally = field(default_factory=Tally)
    num_bytes: int = 0


def begin_ledger(folder: Path, key: Mapping[str, Any] | None, *, reference_only: bool) -> Ledger:
    """Replace the ledger in `folder` by one without steps, durably and at once."""
    content = json.dumps({"key": key, "reference_only": reference_only}).encode() + b"\n"
    atomic_write(folder / LEDGER_NAME, content)
    return Ledger(key, reference_only, num_bytes=len(content))


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
        key, reference_only = about["key"], about["reference_only"] is True
        if isinstance(key, str):
            return Ledger(None, reference_only)
        steps, num_bytes = [], len(header) + 1
        for line in lines[:-1]:  # the rest is a line that was being written
            steps.append(Step.model_validate_json(line))
            num_bytes += len(line) + 1
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not steps:
        return Ledger(key, reference_only, num_bytes=num_bytes)
    return Ledger(
        key,
        reference_only,
        num_fast=sum((step.shard is not None) + len(step.held_out) for step in steps if step.is_fast),
        shards=tuple(step.shard for step in steps if step.shard is not None),
        held_out=tuple(entry for step in steps for entry in step.held_out),
        place=steps[-1].place,
        tally=steps[-1].tally,
        num_bytes=num_bytes,
    )
