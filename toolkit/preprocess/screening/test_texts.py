"""Test texts that a corpus must not hold: the n-grams of files of tests, and the documents in which one stands.

As in GPT-3 (arXiv 2005.14165, appendix C), a document holds a test text where they have 13 words in a row in common;
one of 8 to 12 words has to stand there as a whole, and a shorter one is not looked for. Every string of a file counts,
in whatever column and however deep.
"""

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from toolkit.core.errors import UserError
from toolkit.core.text import first_few
from toolkit.preprocess.readers.lines import line_parser
from toolkit.preprocess.readers.streams import errors_naming, open_file, open_stream
from toolkit.preprocess.screening.grams import Hashes, Words, hash_grams, hash_words
from toolkit.preprocess.settings import TxtDocuments
from toolkit.preprocess.sources import Source
from toolkit.preprocess.sources.source import Format

_GRAM_WORDS, FEWEST_WORDS = 13, 8
_TEXTS_AT_ONCE = 4096


class TestTexts:
    """N-grams of the test texts of files.

    Attributes:
        num_texts: strings that are looked for.
        num_short: strings that are too short for it.
    """

    __test__ = False  # no test, to pytest

    def __init__(self, files: Sequence[Source], *, txt_documents: TxtDocuments) -> None:
        found: list[Hashes] = []
        lengths: set[int] = set()
        self.num_texts = self.num_short = 0
        texts = _strings(value for file in files for value in _values(file, txt_documents))
        while batch := [*islice(texts, _TEXTS_AT_ONCE)]:
            words = hash_words(batch)
            num_long = int((words.counts_N >= FEWEST_WORDS).sum())
            self.num_texts, self.num_short = self.num_texts + num_long, self.num_short + len(batch) - num_long
            for length, grams, counts_N in hash_grams(words, range(FEWEST_WORDS, _GRAM_WORDS + 1)):
                is_its = words.counts_N == length if length < _GRAM_WORDS else words.counts_N >= length
                if is_its.any():
                    lengths.add(length)
                    found.append(grams[np.repeat(is_its, counts_N)])
        if not self.num_texts:
            names = first_few([file.name for file in files])
            raise UserError(f"--without {names}: no string of {FEWEST_WORDS} words or more. Name files of tests.")
        self._lengths, self._grams = sorted(lengths), np.unique(np.concatenate(found))
        # Almost no n-gram of a document is one of a test: a look at a table with sixteen places for each tells.
        self._shift = np.uint64(60 - self._grams.size.bit_length())
        self._table = np.zeros(1 << (64 - int(self._shift)), bool)
        self._table[self._grams >> self._shift] = True

    @property
    def digest(self) -> str:
        """Hash of what is looked for."""
        return hashlib.sha256(self._grams.tobytes()).hexdigest()

    def are_in(self, words: Words) -> npt.NDArray[np.bool_]:
        """Tell for each of N texts whether it holds a test text."""
        found_N = np.zeros(words.counts_N.size, bool)
        for _, grams, counts_N in hash_grams(words, self._lengths):
            at = np.flatnonzero(self._table[grams >> self._shift])
            places = np.minimum(np.searchsorted(self._grams, grams[at]), self._grams.size - 1)
            at = at[self._grams[places] == grams[at]]
            found_N[np.searchsorted(np.cumsum(counts_N), at, side="right")] = True
        return found_N


def _strings(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str) and value:
            yield value
        elif isinstance(value, dict | list):
            yield from _strings(value.values() if isinstance(value, dict) else value)


def _values(source: Source, txt_documents: TxtDocuments) -> Iterator[Any]:
    """Rows of a file, or what else its JSON holds."""
    if source.format is Format.PARQUET:
        import pyarrow.parquet as pq

        with errors_naming(source), open_file(source) as file:
            yield from (batch.to_pylist() for batch in pq.ParquetFile(file).iter_batches())
        return
    with open_stream(source) as stream:
        content = stream.file.read()
    try:
        if source.format is Format.TEXT:
            yield from (
                row.text for row in line_parser(Format.TEXT, text_field="", txt_documents=txt_documents)(content)
            )
        elif source.format is Format.CSV:
            # Of the whole process: a limit that fits this file would be too low for others.
            csv.field_size_limit(2**31 - 1)
            yield from csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        elif source.format is Format.TSV:
            yield from (line.split("\t") for line in content.decode("utf-8-sig").split("\n"))
        else:
            yield from _json_values(content)
    except (ValueError, csv.Error) as error:
        raise UserError(
            f"--without: {source.name} is not a {source.format} file: {error}. Repair it, or leave it out."
        ) from error


def _json_values(content: bytes) -> Iterator[Any]:
    try:
        yield orjson.loads(content)
    except orjson.JSONDecodeError:
        yield from (orjson.loads(line) for line in content.split(b"\n") if not line.isspace() and line)
