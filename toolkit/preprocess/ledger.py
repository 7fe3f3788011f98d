"""What of a corpus is finished: noted after each shard, so that an interrupted run goes on behind the last one.

The ledger is a file in the corpus folder that is there as long as the corpus is not finished. Its first line says
which corpus it is; each other line is a step, added when a shard is finished.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.core.settings import Settings
from toolkit.data.manifest import ShardEntry
from toolkit.preprocess.readers import Reason

__all__ = [
    "LEDGER_NAME",
    "BadRow",
    "Ledger",
    "Step",
    "Tally",
    "begin_ledger",
    "read_ledger",
    "record_step",
    "resume_ledger",
]

LEDGER_NAME = "unfinished.jsonl"


class BadRow(Settings):
    """The first row that was bad for some reason, to show to the user."""

    source: str
    row: int
    """Counted from 1."""
    found: str


@dataclass
class Tally:
    """Counts over the rows read so far.

    Attributes:
        rows: rows of all kinds.
        documents: those that became documents.
        tokens: tokens in these.
        text_bytes: bytes of their text as UTF-8.
        special_text_hits: how often a string of a special token stood in their text.
        skipped: the other rows by reason.
        first_bad: the first bad row for each reason.
    """

    rows: int = 0
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    special_text_hits: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    first_bad: dict[str, BadRow] = field(default_factory=dict)

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

    def reasons(self) -> str:
        """The bad rows by reason, one a line, each with the first example."""
        lines = []
        for reason, bad in self.first_bad.items():
            count = self.skipped[reason]
            lines.append(
                f"  {reason}: {count:,} row{'s' if count > 1 else ''}; first {bad.source} row {bad.row:,}: {bad.found}"
            )
        return "\n".join(lines)


class Step(Settings):
    """One line of the ledger: a shard that is finished, and where to go on behind it."""

    shard: ShardEntry
    """The shard."""
    source: int
    """Number of the source to go on with."""
    rows: int
    """How many of its rows are done."""
    tally: Tally
    """Counts up to there."""


@dataclass(frozen=True)
class Ledger:
    """How far a corpus is.

    Attributes:
        key: hash of everything that decides the corpus; another key, another corpus.
        shards: the finished ones.
        source: number of the source to go on with.
        rows: how many of its rows are done.
        tally: counts up to there.
        num_bytes: size of the file up to the last whole line.
    """

    key: str
    shards: tuple[ShardEntry, ...] = ()
    source: int = 0
    rows: int = 0
    tally: Tally = field(default_factory=Tally)
    num_bytes: int = 0


def begin_ledger(folder: Path, key: str) -> Ledger:
    """Replace the ledger in `folder` by one without steps, durably and at once."""
    temporary = folder / f".{LEDGER_NAME}.partial"
    content = json.dumps({"key": key}).encode() + b"\n"
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / LEDGER_NAME)
    return Ledger(key=key, num_bytes=len(content))


def resume_ledger(folder: Path, ledger: Ledger) -> None:
    """Cut off a line that was being written when the process ended, so that steps can follow."""
    os.truncate(folder / LEDGER_NAME, ledger.num_bytes)


def record_step(folder: Path, step: Step) -> None:
    """Add a step to the ledger in `folder`, durably."""
    with (folder / LEDGER_NAME).open("ab") as file:
        file.write(step.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_ledger(folder: Path) -> Ledger | None:
    """The ledger in `folder`; None where there is none that can be read (then nothing in it can be relied on)."""
    try:
        header, *lines = (folder / LEDGER_NAME).read_bytes().split(b"\n")
        key = json.loads(header)["key"]
        steps, num_bytes = [], len(header) + 1
        for line in lines[:-1]:  # what stands behind the last line end is no whole line
            steps.append(Step.model_validate_json(line))
            num_bytes += len(line) + 1
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not steps:
        return Ledger(key=key, num_bytes=num_bytes)
    shards, last = tuple(step.shard for step in steps), steps[-1]
    return Ledger(key, shards, last.source, last.rows, last.tally, num_bytes)
