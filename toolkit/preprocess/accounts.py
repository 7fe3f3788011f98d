"""Counts over rows and documents: of a corpus, of each of its sources, with the first bad rows of each."""

import operator
from collections import Counter
from dataclasses import astuple, dataclass, field

from toolkit.core.settings import Record
from toolkit.core.text import counted, printable
from toolkit.data import SourceEntry
from toolkit.preprocess.readers import Reason, Row

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
    """Counts of one source; `first_bad` has the first bad row for each reason."""

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
    """

    kept: Counts = field(default_factory=Counts)
    held_out: Counts = field(default_factory=Counts)
    sources: dict[str, Account] = field(default_factory=dict)

    @property
    def both(self) -> Counts:
        """Counts of what became documents."""
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
