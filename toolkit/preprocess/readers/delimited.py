"""CSV and TSV: a header with the names of the columns, then one record per row.

CSV is quoted as in RFC 4180, so a text may contain line ends and only parsing tells where a record ends; the thread
that finds the spans does it. TSV has no quoting: every line is a record, quotation marks are ordinary characters, and
workers parse byte ranges themselves.
"""

import codecs
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial

from toolkit.core.errors import UserError
from toolkit.preprocess.readers.csv_records import DOUBLED, CsvRecords
from toolkit.preprocess.readers.lines import iterate_line_spans, without_line_end
from toolkit.preprocess.readers.rows import Reason, Row, Span, row_from_text
from toolkit.preprocess.readers.streams import open_stream
from toolkit.preprocess.readers.swallowed_rows import ColumnHabits, holds_rows, split_lines
from toolkit.preprocess.sources.source import Source

_SPAN_BYTES = 4 << 20
_HEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class _Header:
    names: Sequence[str]
    text_field: str

    def row(self, fields: Sequence[str]) -> Row:
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
    """Iterate over the spans of a CSV file, from the record at byte `start` on.

    A field that is never closed, or has more than 2^30 characters, is an error: it hides an unknown number of rows.
    """
    with open_stream(source) as stream:
        records = CsvRecords(source, stream.file, 0)
        names, start = next(records, []), max(start, records.num_bytes)
        _check_header(source, names, records)
    reader = _CsvReader(source, _Header(names, text_field))
    with open_stream(source, start=start) as stream:
        records = CsvRecords(source, stream.file, start, num_columns=len(names))
        rows: list[Row] = []
        for fields in records:
            rows += reader.rows(records, fields)
            if records.num_bytes - start >= _SPAN_BYTES:
                yield Span(start, stream.source_position(), partial(list, rows))
                rows, start = [], records.num_bytes
        if rows:
            yield Span(start, stream.source_position(), partial(list, rows))


def _check_header(source: Source, names: Sequence[str], records: CsvRecords) -> None:
    problem = records.problem
    if records.num_lines > 1 and len(names) > 1:
        several = next(number for number, name in enumerate(names) if "\n" in name)
        if all(len(line) == len(names) for line in split_lines(several, names)):
            problem = f"{records.lines} are one record, whose lines look like rows ({DOUBLED})"
    if problem:
        raise UserError(f"the header of {source.name} is broken: {problem}. Repair it.")


@dataclass(frozen=True)
class _CsvReader:
    source: Source
    header: _Header

    def rows(self, records: CsvRecords, fields: Sequence[str]) -> list[Row]:
        """The row of the last record; one bad row for each of its lines, where they may have been rows themselves."""
        if fields:
            row = self.header.row(fields)
        else:
            row = Row("", Reason.BROKEN_CSV, records.problem) if records.problem else Row("", Reason.EMPTY)
        num_lines, is_broken = records.num_lines, row.reason in (Reason.BROKEN_CSV, Reason.WRONG_COLUMNS)
        if num_lines > 1 and (is_broken or holds_rows(fields, self._habits)):
            found = f"{records.lines}: {row.found or 'one text, whose lines look like rows'} ({DOUBLED})"
            return [Row("", Reason.SWALLOWED, found)] * num_lines
        if records.not_utf8:
            return [Row("", Reason.NOT_UTF8, records.not_utf8)]
        return [row._replace(num_lines=num_lines) if num_lines > 1 else row]

    @cached_property
    def _habits(self) -> Sequence[ColumnHabits]:
        """Habits of the rows of one line at the head of the file."""
        num_columns, rows = len(self.header.names), list[Sequence[str]]()
        # What is broken there is said when its turn comes.
        with suppress(UserError), open_stream(self.source) as stream:
            records = CsvRecords(self.source, stream.file, 0)
            next(records)
            for fields in records:
                if len(fields) == num_columns and records.num_lines == 1:
                    rows.append(fields)
                if records.num_bytes > _HEAD_BYTES:
                    break
        return ColumnHabits.of_columns(rows, num_columns)
