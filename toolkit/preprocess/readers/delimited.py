"""CSV and TSV: a header with the names of the columns, then one record per row.

CSV is quoted as in RFC 4180, so a text may contain line ends and only parsing tells where a record ends; the thread
that finds the spans does it. TSV has no quoting: every line is a record, quotation marks are ordinary characters, and
workers parse byte ranges themselves.
"""

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from toolkit.core.errors import UserError
from toolkit.preprocess.readers.lines import iterate_line_spans, without_line_end
from toolkit.preprocess.readers.rows import Reason, Row, Span, row_from_text
from toolkit.preprocess.readers.streams import open_stream
from toolkit.preprocess.sources.source import Source

_SPAN_BYTES = 4 << 20


@dataclass(frozen=True)
class _Header:
    """The columns of a file, and the name of the one with the text."""

    names: Sequence[str]
    text_field: str

    def row(self, fields: Sequence[str]) -> Row:
        """The row of a record."""
        if len(fields) != len(self.names):
            return Row("", Reason.WRONG_COLUMNS, f"{len(fields)} fields; the header has {len(self.names)}")
        if self.text_field not in self.names:
            return Row("", Reason.MISSING_FIELD, f"no column {self.text_field!r}; its columns: {self.names}")
        return row_from_text(fields[self.names.index(self.text_field)])


def iterate_tsv_spans(source: Source, text_field: str, *, start: int) -> Iterator[Span]:
    """The spans of a TSV file, from the record at byte `start` on."""
    with open_stream(source) as stream:
        line = stream.file.readline()
    names = without_line_end(line).removeprefix(codecs.BOM_UTF8).decode("utf-8", "backslashreplace").split("\t")
    parse = partial(_tsv_rows, _Header(names, text_field))
    yield from iterate_line_spans(source, parse, start=max(start, len(line)))


def _tsv_rows(header: _Header, content: bytes) -> list[Row]:
    return [_tsv_row(header, without_line_end(line)) for line in io.BytesIO(content)]


def _tsv_row(header: _Header, line: bytes) -> Row:
    try:
        return header.row(line.decode("utf-8").split("\t")) if line else Row("", Reason.EMPTY)
    except UnicodeDecodeError as error:
        return Row("", Reason.NOT_UTF8, f"{error.reason} at byte {error.start}")


def iterate_csv_spans(source: Source, text_field: str, *, start: int) -> Iterator[Span]:
    """The spans of a CSV file, from the record at byte `start` on.

    Raises:
        UserError: the header is broken, or a quotation mark is never closed, which hides an unknown number of rows.
    """
    # The default limit of 131,072 characters is less than a novel.
    csv.field_size_limit(2**31 - 1)
    with open_stream(source) as stream:
        records = _Records(source, stream.file, 0)
        first = next(records, [])
        if isinstance(first, Row):
            raise UserError(f"the header of {source.name} is broken: {first.found}. Repair it.")
        header, start = _Header(first, text_field), max(start, records.num_bytes)
    with open_stream(source, start=start) as stream:
        records = _Records(source, stream.file, start)
        rows: list[Row] = []
        for record in records:
            if isinstance(record, Row):
                rows.append(record)
            else:
                rows.append(header.row(record) if record else Row("", Reason.EMPTY))
            if records.num_bytes - start >= _SPAN_BYTES:
                yield Span(start, stream.source_position(), partial(list, rows))
                rows, start = [], records.num_bytes
        if rows:
            yield Span(start, stream.source_position(), partial(list, rows))


class _Records:
    """The records of a CSV file: their fields, or a bad row.

    Attributes:
        num_bytes: byte of the decompressed file at which the next record starts.
    """

    def __init__(self, source: Source, file: BinaryIO, start: int) -> None:
        self._source, self._file, self.num_bytes = source, file, start
        self._not_utf8 = ""
        self._records = csv.reader(self._lines(), strict=True)

    def __iter__(self) -> Iterator[list[str] | Row]:
        return self

    def __next__(self) -> list[str] | Row:
        self._not_utf8, start = "", self.num_bytes
        try:
            fields = next(self._records)
        except csv.Error as error:
            if str(error) == "unexpected end of data":
                raise UserError(
                    f"the source {self._source.name} is broken: a quotation mark in the record at byte {start:,} is "
                    "never closed. Repair it, or leave it out."
                ) from error
            return Row("", Reason.BROKEN_CSV, str(error))
        return Row("", Reason.NOT_UTF8, self._not_utf8) if self._not_utf8 else fields

    def _lines(self) -> Iterator[str]:
        for line in self._file:
            content = line.removeprefix(codecs.BOM_UTF8) if self.num_bytes == 0 else line
            self.num_bytes += len(line)
            try:
                yield content.decode("utf-8")
            except UnicodeDecodeError as error:
                self._not_utf8 = f"{error.reason} at byte {error.start} of a line"
                yield content.decode("utf-8", "replace")
