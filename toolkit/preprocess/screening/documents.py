"""Screening: which documents are left out. Every group of sources is read once, then all are decided on at once.

corpus/unfinished/00003.screened/   results of reading the group's texts; complete, or absent
  rows                              position of each document, and the number of a test text in it, or -1
  signatures                        128 values for each document, if near-duplicates are looked for
  dropped                           the rows that are left out, once that is decided
corpus/unfinished/dropped.jsonl     the same for all groups, for people; written when all is decided
"""

import shutil
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from toolkit.core.console import console
from toolkit.core.errors import SettingsError
from toolkit.core.files import atomic_directory, atomic_file, atomic_write, hash_file
from toolkit.core.text import counted
from toolkit.data import DROPPED_FILE, DroppedEntry, SourceEntry
from toolkit.preprocess.accounts import Account
from toolkit.preprocess.encoding import ahead
from toolkit.preprocess.readers import Reason, Row, Span
from toolkit.preprocess.screening.grams import WORDS_VERSION, hash_words
from toolkit.preprocess.screening.near_duplicates import SIGNATURE_VALUES, Signatures, first_of_groups, sign
from toolkit.preprocess.screening.test_texts import FEWEST_WORDS, TestTexts
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.source_checks import check_sources, spans_of
from toolkit.preprocess.sources import Source

_SIGNATURE = np.dtype([("values", "<u4", SIGNATURE_VALUES)])
_ROW = np.dtype([("source", "<u4"), ("span", "<i8"), ("in_span", "<u4"), ("row", "<i8"), ("test", "<i4")])

_REASONS = (Reason.NEAR_DUPLICATE, Reason.TEST_TEXT)
_Rows = npt.NDArray[np.void]


def open_screening(settings: PreprocessSettings) -> "Screening | None":
    """Return the criteria for leaving out documents; None if there are none. Reads the test texts."""
    if settings.near_duplicates is None and not settings.without:
        return None
    if settings.is_limited:
        raise SettingsError(
            "--near-duplicates and --without read all sources first, so --limit-documents and --limit-tokens would "
            "save nothing. Leave out the limit, or name fewer sources."
        )
    if settings.near_duplicates is not None and find_spec("rensa") is None:
        raise SettingsError(
            "--near-duplicates needs the package rensa, which is not installed. Install it with: "
            "pip install 'encoder-pretraining-toolkit[dedup]'"
        )
    if not settings.without:
        return Screening(settings.near_duplicates, None)
    tests = TestTexts(settings.without, txt_documents=settings.txt_documents, delimiter=settings.delimiter)
    console().print(
        f"Looking for {counted(len(tests.texts), 'test text')}; {tests.num_short:,} strings of less than "
        f"{FEWEST_WORDS} words are not looked for."
    )
    return Screening(settings.near_duplicates, tests)


@dataclass(frozen=True)
class Screening:
    """Criteria for leaving out documents.

    Attributes:
        similarity: minimum similarity of near-duplicates, of which the first stays; None: all stay.
        tests: test texts that no document may contain.
    """

    similarity: float | None
    tests: TestTexts | None

    def key(self) -> dict[str, Any]:
        """Everything the choice depends on, by the name users know it by."""
        return {
            "--near-duplicates": self.similarity,
            "--without": self.tests and self.tests.digest[:16],
            "rensa": None if self.similarity is None else version("rensa"),
            "Unicode": unicodedata.unidata_version,
            "version of words": WORDS_VERSION,
        }

    def read(self, span: Span) -> tuple[list[tuple[int, Row]], _Rows, Signatures]:
        """Read a span; return its rows without a document, its documents, and their signatures, if any."""
        rows = span.read()
        numbers = [number for number, row in enumerate(rows) if row.reason is None]
        words, found = hash_words([rows[number].text for number in numbers]), np.zeros(len(numbers), _ROW)
        found["in_span"], found["test"] = numbers, -1
        if self.tests is not None:
            found["test"] = self.tests.find(words)
        signatures = np.empty((0, SIGNATURE_VALUES), np.uint32) if self.similarity is None else sign(words)
        return [(number, row) for number, row in enumerate(rows) if row.reason], found, signatures

    def read_group(
        self, files: Sequence[Source], folder: Path, *, settings: PreprocessSettings, on_span: Callable[[int], None]
    ) -> None:
        """Write the results of reading a group's sources into a folder; `on_span` gets the bytes read so far.

        The sources are checked too, so that a bad one is reported before all groups are read.
        """
        spans, accounts = spans_of(files, settings), [Account() for _ in files]
        with (
            atomic_directory(folder) as unfinished,
            (unfinished / "rows").open("wb") as rows_file,
            (unfinished / "signatures").open("wb") as signatures_file,
            closing(ahead(spans, lambda item: self.read(item[1]), num_workers=settings.workers)) as results,
        ):
            for at, ((source, span), (skipped, found, signatures)) in enumerate(results):
                account = accounts[source]
                found["source"], found["span"], found["row"] = source, at, account.rows + 1 + found["in_span"]
                account.add(len(found), skipped)
                rows_file.write(found.tobytes())
                signatures_file.write(signatures.tobytes())
                on_span(span.end_bytes)
            check_sources(zip(files, accounts, strict=True), settings)

    def decide(self, groups: Sequence[tuple[Path, Sequence[str]]], output: Path) -> None:
        """Decide which documents are left out; `groups` are all screened folders in order, each with source names.

        A document that contains a test text neither is a near-duplicate nor has one.
        """
        folders = [folder for folder, _ in groups]
        rows = [_mapped(folder / "rows", _ROW) for folder in folders]
        tests = np.concatenate([part["test"] for part in rows])
        holds_test = tests >= 0
        firsts, starts = np.arange(tests.size), np.cumsum([0, *map(len, rows)])
        if self.similarity is not None:
            parts = [_mapped(folder / "signatures", _SIGNATURE)["values"] for folder in folders]
            firsts = first_of_groups(parts, ~holds_test, self.similarity)

        if self.tests is not None:
            self.tests.report_frequent(Counter(tests[holds_test].tolist()))

        def place(number: int) -> dict[str, str | int]:
            group = int(np.searchsorted(starts, number, side="right")) - 1
            row = rows[group][number - starts[group]]
            return {"source": groups[group][1][row["source"]], "row": int(row["row"])}

        def why(number: int) -> dict[str, Any]:
            if self.tests is not None and holds_test[number]:
                return {"reason": Reason.TEST_TEXT, "of": self.tests.texts[tests[number]]._asdict()}
            return {"reason": Reason.NEAR_DUPLICATE, "of": place(int(firsts[number]))}

        with atomic_file(output / DROPPED_FILE) as lines:
            for folder, part, start in zip(folders, rows, starts, strict=False):
                numbers = np.arange(start, start + len(part))
                dropped = numbers[(firsts[numbers] != numbers) | holds_test[numbers]]
                atomic_write(folder / "dropped", part[dropped - start].tobytes())
                lines.writelines(orjson.dumps({**place(at), **why(at)}) + b"\n" for at in dropped.tolist())


def take_dropped(folder: Path, output: Path, accounts: Mapping[str, SourceEntry]) -> DroppedEntry | None:
    """Move the list of left-out documents to the corpus; return its entry, or None if nothing was to be left out."""
    if (folder / DROPPED_FILE).exists():
        (folder / DROPPED_FILE).replace(output / DROPPED_FILE)
    elif not (output / DROPPED_FILE).exists():
        return None
    sources = {
        name: {reason: count for reason, count in account.skipped.items() if reason in _REASONS}
        for name, account in accounts.items()
    }
    dropped = {name: counts for name, counts in sources.items() if counts}
    return DroppedEntry(sha256=hash_file(output / DROPPED_FILE), sources=dropped)


def forget_screened(folder: Path) -> None:
    """Have all groups screened again, because the sources of some have changed."""
    (folder / DROPPED_FILE).unlink(missing_ok=True)
    for screened in folder.glob("*.screened"):
        shutil.rmtree(screened)


def without_dropped(spans: Iterator[tuple[int, Span]], folder: Path) -> Iterator[tuple[int, Span]]:
    """Spans of a group's sources, each with its source's number; left-out rows have a reason instead of a text."""
    dropped = defaultdict[int, list[tuple[int, Reason]]](list)
    for _, at, number, _, test in np.fromfile(folder / "dropped", _ROW).tolist():
        dropped[at].append((number, Reason.NEAR_DUPLICATE if test < 0 else Reason.TEST_TEXT))
    for at, (source, span) in enumerate(spans):
        its = dropped.get(at, ())
        yield source, replace(span, read=partial(_rows_without, span.read, its)) if its else span


def _rows_without(read: Callable[[], list[Row]], dropped: Sequence[tuple[int, Reason]]) -> list[Row]:
    rows = read()
    for number, reason in dropped:
        rows[number] = rows[number]._replace(text="", reason=reason)
    return rows


def _mapped(path: Path, dtype: np.dtype[np.void]) -> npt.NDArray[Any]:
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
