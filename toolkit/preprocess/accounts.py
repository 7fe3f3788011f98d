"""Row and document counts of a corpus and of each of its sources, with each source's first bad rows."""

import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field

from toolkit.core.settings import Record
from toolkit.core.text import counted, printable
from toolkit.data import SourceEntry
from toolkit.preprocess.readers import Reason, Row

_MOST_NAMED, _MOST_RECORDED = 8, 1000


class BadRow(Record):
    """First bad row of a source for one reason, to show to the user."""

    row: int
    """Counted from 1."""
    found: str


@dataclass
class Counts:
    """Sums over documents: UTF-8 bytes of text, occurrences of special-token strings in it, unknown tokens."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    special_text_hits: int = 0
    unknown_tokens: int = 0

    def plus(self, later: "Counts") -> "Counts":
        """Return the sums over the documents of both."""
        return Counts(*map(operator.add, astuple(self), astuple(later)))

    def minus(self, earlier: "Counts") -> "Counts":
        """Return the sums over the documents that were added after `earlier`."""
        return Counts(*map(operator.sub, astuple(self), astuple(earlier)))

    def rates(self, seconds: float) -> str:
        """Documents, text and tokens per second."""
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
        """Number of rows, with and without a document."""
        return self.documents + sum(self.skipped.values())

    @property
    def num_bad(self) -> int:
        """Number of rows that should have had a text but did not."""
        return sum(count for reason, count in self.skipped.items() if Reason(reason).is_bad)

    @property
    def num_texts(self) -> int:
        """Number of rows with a text, including rows left out on purpose."""
        return self.rows - self.num_bad - self.skipped.get(Reason.EMPTY, 0)

    def add(self, num_documents: int, skipped: Iterable[tuple[int, Row]]) -> None:
        """Count the next rows: documents, and rows that yield none, each with its number among these rows, from 0."""
        first = self.rows + 1
        for number, row in skipped:
            assert row.reason is not None
            self.skipped[row.reason] = self.skipped.get(row.reason, 0) + 1
            if row.reason.is_bad and row.reason not in self.first_bad:
                self.first_bad[row.reason] = BadRow(row=first + number, found=row.found)
        self.documents += num_documents

    def reasons(self) -> str:
        """Bad rows by reason, each with the first example."""
        return "; ".join(
            printable(f"{counted(self.skipped[reason], 'row')} {reason} (first row {bad.row:,}: {bad.found})")
            for reason, bad in self.first_bad.items()
        )


@dataclass
class Tally:
    """Counts over the rows read so far.

    Attributes:
        kept: documents of the corpus.
        held_out: documents of the holdout.
        sources: the account of each source, by its name in corpus.json.
    """

    kept: Counts = field(default_factory=Counts)
    held_out: Counts = field(default_factory=Counts)
    sources: dict[str, Account] = field(default_factory=dict)

    @property
    def both(self) -> Counts:
        """Counts over all documents, kept and held out."""
        return self.kept.plus(self.held_out)

    @property
    def skipped(self) -> dict[str, int]:
        """Rows without a document, by reason."""
        found = Counter[str]()
        for account in self.sources.values():
            found.update(account.skipped)
        return dict(found)

    def entries(self) -> dict[str, SourceEntry]:
        """Entries of corpus.json; with many sources, those with the most skipped rows, and one for all others."""
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
        """One line per source with bad rows; if there are many, the first few and how many more there are."""
        bad = [(name, account) for name, account in self.sources.items() if account.num_bad]
        lines = [printable(name) + f": {account.reasons()}" for name, account in bad[:_MOST_NAMED]]
        return [*lines, f"and {len(bad) - _MOST_NAMED:,} more sources"] if len(bad) > _MOST_NAMED else lines
