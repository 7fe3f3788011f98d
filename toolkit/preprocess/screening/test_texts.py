"""Test texts that a corpus must not contain: the n-grams of test files, and the documents in which one occurs.

As in GPT-3 (arXiv 2005.14165, appendix C), a document contains a test text if they share 13 consecutive words; one of
8 to 12 words must occur as a whole, and shorter ones are not looked for. Every string of a file counts, in any column
and at any depth, unless a column is named.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from toolkit.core.console import console
from toolkit.core.errors import SettingsError, UserError
from toolkit.core.text import counted, first_few
from toolkit.data import DROPPED_FILE
from toolkit.preprocess.readers.lines import line_parser
from toolkit.preprocess.readers.streams import errors_naming, open_stream
from toolkit.preprocess.screening.grams import Hashes, Words, hash_grams, hash_words
from toolkit.preprocess.settings import TxtDocuments
from toolkit.preprocess.sources import Source, find_sources
from toolkit.preprocess.sources.source import Format, format_of
from toolkit.preprocess.writer.groups import recorded_names
from toolkit.tables import iterate_rows, load_any_json

_GRAM_WORDS, FEWEST_WORDS = 13, 8
_TEXTS_AT_ONCE = 4096
_SHOWN_CHARACTERS = 120
_FREQUENT, _FREQUENT_SHOWN = 10, 3


class PlacedText(NamedTuple):
    """The beginning of a string in a test file, and its row or line, from 1."""

    source: str
    row: int
    text: str


class TestTexts:
    """N-grams of the test texts in files.

    Args:
        named: test files and folders; with `:COLUMN` appended if only that column (or key) counts.
        txt_documents: unit of text in a .txt file.
        delimiter: character between the columns of .csv files.

    Attributes:
        texts: strings that are looked for.
        num_short: number of strings that are too short to look for.
    """

    __test__ = False  # not a test class for pytest

    def __init__(self, named: Sequence[str], *, txt_documents: TxtDocuments, delimiter: str) -> None:
        found: list[Hashes] = []
        owners: list[npt.NDArray[np.int32]] = []
        lengths: set[int] = set()
        self.texts, self.num_short = list[PlacedText](), 0
        strings = _strings_of(_find(named), txt_documents, delimiter=delimiter)
        while batch := [*islice(strings, _TEXTS_AT_ONCE)]:
            words = hash_words([string for _, _, string in batch])
            is_long = words.counts_N >= FEWEST_WORDS
            numbers = len(self.texts) + np.cumsum(is_long, dtype=np.int32) - 1
            long = [batch[number] for number in np.flatnonzero(is_long)]
            self.texts += [PlacedText(source, row, string[:_SHOWN_CHARACTERS]) for source, row, string in long]
            self.num_short += len(batch) - len(long)
            for length, grams, counts_N in hash_grams(words, range(FEWEST_WORDS, _GRAM_WORDS + 1)):
                is_its = words.counts_N == length if length < _GRAM_WORDS else words.counts_N >= length
                if is_its.any():
                    lengths.add(length)
                    found.append(grams[np.repeat(is_its, counts_N)])
                    owners.append(np.repeat(numbers, counts_N * is_its))
        if not self.texts:
            raise UserError(
                f"--without {first_few(named)}: no string of {FEWEST_WORDS} words or more. Name files of tests."
            )
        self._lengths = sorted(lengths)
        self._grams, firsts = np.unique(np.concatenate(found), return_index=True)
        self._owners = np.concatenate(owners)[firsts]
        # Almost no n-gram of a document is in a test: a lookup in a table with 16 slots per test n-gram rules most out.
        self._shift = np.uint64(60 - self._grams.size.bit_length())
        self._table = np.zeros(1 << (64 - int(self._shift)), bool)
        self._table[self._grams >> self._shift] = True

    @property
    def digest(self) -> str:
        """Hash of what is looked for, and of what is reported about it."""
        digest = hashlib.sha256(self._grams.tobytes() + self._owners.tobytes())
        digest.update(repr(self.texts).encode())
        return digest.hexdigest()

    def find(self, words: Words) -> npt.NDArray[np.int32]:
        """(N,) number of a test text that each text contains, the lowest that is found; -1 if none."""
        none = len(self.texts)
        found_N = np.full(words.counts_N.size, none, np.int32)
        for _, grams, counts_N in hash_grams(words, self._lengths):
            at = np.flatnonzero(self._table[grams >> self._shift])
            places = np.minimum(np.searchsorted(self._grams, grams[at]), self._grams.size - 1)
            is_found = self._grams[places] == grams[at]
            its = np.searchsorted(np.cumsum(counts_N), at[is_found], side="right")
            np.minimum.at(found_N, its, self._owners[places[is_found]])
        return np.where(found_N == none, np.int32(-1), found_N)

    def report_frequent(self, num_documents: Counter[int]) -> None:
        """Print which test texts many documents contain; `num_documents` counts documents by the text's number."""
        frequent = [(self.texts[number], count) for number, count in num_documents.most_common() if count > _FREQUENT]
        for (source, row, text), count in frequent[:_FREQUENT_SHOWN]:
            console().print(f"{counted(count, 'document')} held one test text ({source}, row {row:,}): {text!r}")
        if frequent:
            console().print(
                f"{counted(len(frequent), 'test text')} took more than {_FREQUENT} documents "
                f"(see {DROPPED_FILE}). If it is a common phrase, look for one column: --without FILE:COLUMN."
            )


def _find(named: Sequence[str]) -> list[tuple[Source, str]]:
    """The files, each with the column that counts; "" for all. A name that exists as a path has no column."""
    found: list[tuple[Source, str]] = []
    for name in named:
        path, colon, column = name.rpartition(":")
        has_column = (
            bool(colon) and not os.path.lexists(name) and (os.path.lexists(path) or format_of(path) is not None)
        )
        found += [(source, column if has_column else "") for source in find_sources([path if has_column else name])]
    if on_hub := [source.name for source, _ in found if source.revision]:
        raise SettingsError(f"--without {on_hub[0]} is on the hub. Download it, and name the file.")
    return sorted(set(found), key=lambda item: (os.fsencode(item[0].name), item[1]))


def _strings_of(
    files: Sequence[tuple[Source, str]], txt_documents: TxtDocuments, *, delimiter: str
) -> Iterator[tuple[str, int, str]]:
    """File name, row number and string, for all strings that count."""
    names = recorded_names([source for source, _ in files])
    for name, (source, column) in zip(names, files, strict=True):
        keys, has_text = tuple[str, ...](), False
        for number, row in _rows(source, txt_documents, delimiter=delimiter, has_header=bool(column)):
            keys = keys or (tuple(row) if isinstance(row, dict) else ())
            for string in _strings(row, column):
                has_text = True
                yield name, number, string
        if column and not has_text:
            raise UserError(
                f"--without {source.name}:{column}: no text in a column {column!r}; found: "
                f"{', '.join(map(repr, keys)) or 'no columns'}. Name a column with text, or the file alone."
            )


def _rows(
    source: Source, txt_documents: TxtDocuments, *, delimiter: str, has_header: bool
) -> Iterator[tuple[int, Any]]:
    with errors_naming(source), open_stream(source) as stream:
        if source.format is Format.TEXT:
            parse = line_parser(Format.TEXT, text_field="", txt_documents=txt_documents)
            yield from enumerate((row.text for row in parse(stream.file.read())), start=1)
            return
        rows = iterate_rows(source.name, source.format, stream.file, load=load_any_json, delimiter=delimiter)
        if has_header and source.format in (Format.CSV, Format.TSV):
            _, header = next(rows, (0, ()))
            rows = ((number, dict(zip(header, cells, strict=False))) for number, cells in rows)
        yield from rows


def _strings(row: Any, column: str) -> Iterator[str]:
    """The strings in a row, only below the key `column` if one is named; lists may be nested to any depth."""
    stack: list[tuple[Any, bool]] = [([row], not column)]
    while stack:
        holder, all_count = stack.pop()
        for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
            counts = all_count or key == column
            if isinstance(value, dict | list | tuple):  # a pair of a Parquet map is a tuple
                stack.append((value, counts))
            elif counts and value and isinstance(value, str):  # A lone surrogate has no UTF-8 encoding.
                yield value if value.isascii() else value.encode("utf-8", "replace").decode()
            elif counts and isinstance(value, bytes):  # text of a Parquet column
                yield value.decode("utf-8", "replace")
