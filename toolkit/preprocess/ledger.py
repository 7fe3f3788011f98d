"""What of a corpus is finished: written after each shard, so that an interrupted run goes on behind the last one.

The ledger is a file in the corpus folder that is there as long as the corpus is not finished.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, ValidationError

from toolkit.core.settings import Settings
from toolkit.data.manifest import ShardEntry
from toolkit.preprocess.readers import Reason

__all__ = ["LEDGER_NAME", "BadRow", "Ledger", "Tally", "read_ledger", "write_ledger"]

LEDGER_NAME = "unfinished.json"


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


class Ledger(Settings):
    """How far a corpus is.

    Attributes:
        key: hash of everything that decides the corpus; another key, another corpus.
        shards: the finished ones.
        source: number of the source to go on with.
        rows: how many of its rows are done.
        tally: counts up to there.
    """

    key: str
    shards: tuple[ShardEntry, ...] = ()
    source: int = 0
    rows: int = 0
    tally: Tally = Field(default_factory=Tally)


def read_ledger(folder: Path) -> Ledger | None:
    """The ledger in `folder`; None where there is none that can be read (then nothing in it can be relied on)."""
    try:
        return Ledger.model_validate_json((folder / LEDGER_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def write_ledger(folder: Path, ledger: Ledger) -> None:
    """Replace the ledger in `folder`, durably and at once."""
    temporary = folder / f".{LEDGER_NAME}.partial"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(ledger.model_dump_json(indent=1))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / LEDGER_NAME)
