"""Records of a CSV file with the lines that each takes.

A quotation mark at the start of a field opens a text that ends at the next mark, however many rows lie between. So a
record knows how many lines it takes, and after one whose quoting is wrong reading resumes at the first line that can
begin a record.
"""

import codecs
import csv
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import BinaryIO, NoReturn

from toolkit.core.errors import UserError
from toolkit.preprocess.readers.streams import open_stream
from toolkit.preprocess.sources.source import Source

_MOST_FIELD_CHARACTERS = 1 << 30
_BLOCK_BYTES = 1 << 20
DOUBLED = "inside a quoted text, a quotation mark is written twice"
"""The remedy, for messages."""
_OPEN_FIELD = r'"(?:[^"]|"")*+'
_FIELD = rf'(?:{_OPEN_FIELD}"|[^",\r\n]*)'


class CsvRecords:
    """The records of a CSV file from a byte on: an iterator of their fields, none for a blank line or a broken record.

    Args:
        file: its decompressed bytes, at byte `start`.
        start: where a record begins.
        num_columns: fields of a record, once the header is read.

    Attributes:
        num_bytes: byte of the decompressed file at which the next record starts.
        problem: what is wrong with the quoting of the last record; empty if nothing is.
        not_utf8: what is wrong with its encoding; empty if nothing is.
    """

    def __init__(self, source: Source, file: BinaryIO, start: int, *, num_columns: int = 1) -> None:
        self._source, self._file, self._start, self.num_bytes = source, file, start, start
        self.problem = self.not_utf8 = ""
        self._lines_read = self._lines_before_record = 0
        more = max(num_columns, 1) - 1
        whole, cut_off = rf"(?:{_FIELD},){{{more}}}{_FIELD}\r?\n?", rf"(?:{_FIELD},){{0,{more}}}{_OPEN_FIELD}"
        self._can_begin_record = re.compile(f"{whole}|{cut_off}").fullmatch
        # The default limit of 131,072 characters is less than a novel.
        csv.field_size_limit(_MOST_FIELD_CHARACTERS)
        self._reader = csv.reader(self._decoded(file), strict=True)

    @property
    def num_lines(self) -> int:
        """Lines that the last record takes."""
        return self._lines_read - self._lines_before_record

    @property
    def lines(self) -> str:
        """Lines of the file that the last record takes, for messages."""
        first, last = (self._lines_before + number for number in (self._lines_before_record + 1, self._lines_read))
        return f"lines {first:,} to {last:,}"

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        self.problem = self.not_utf8 = ""
        self._lines_before_record = self._lines_read
        try:
            return next(self._reader)
        except csv.Error as error:
            self.problem = str(error)
        if self.problem == "unexpected end of data":
            self._fail("a quotation mark in the record at line {} is never closed")
        if self.problem.startswith("field larger"):
            self._fail("the record at line {} has a field of more than 2^30 characters")
        self._skip_to_record()
        return []

    @cached_property
    def _lines_before(self) -> int:
        """Lines before the byte where the reading began; read again, since only messages need them."""
        num_lines, missing = 0, self._start
        with open_stream(self._source) as stream:
            while missing and (block := stream.file.read(min(missing, _BLOCK_BYTES))):
                num_lines, missing = num_lines + block.count(b"\n"), missing - len(block)
        return num_lines

    def _fail(self, problem: str) -> NoReturn:
        line = f"{self._lines_before + self._lines_before_record + 1:,}"
        raise UserError(
            f"the source {self._source.name} is broken: {problem.format(line)}, which hides an unknown number of rows. "
            f"Repair it ({DOUBLED}), or leave it out."
        )

    def _skip_to_record(self) -> None:
        for line in self._file:
            if self._can_begin_record(line.decode("utf-8", "replace")):
                self._reader = csv.reader(self._decoded(chain([line], self._file)), strict=True)
                return
            self.num_bytes += len(line)
            self._lines_read += 1

    def _decoded(self, lines: Iterable[bytes]) -> Iterator[str]:
        for line in lines:
            content = line.removeprefix(codecs.BOM_UTF8) if self.num_bytes == 0 else line
            self.num_bytes += len(line)
            self._lines_read += 1
            try:
                yield content.decode("utf-8")
            except UnicodeDecodeError as error:
                self.not_utf8 = f"{error.reason} at byte {error.start} of a line"
                yield content.decode("utf-8", "replace")
