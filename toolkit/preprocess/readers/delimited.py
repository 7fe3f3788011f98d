"""CSV and TSV: a header with the names of the columns, then one record per row.

CSV is quoted as in RFC 4180, so a text may contain line ends and only parsing tells where a record ends; the thread
that finds the spans parses it. TSV has no quoting: every line is a record, quotation marks are ordinary characters, and
workers parse byte ranges themselves.
"""

import codecs
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from toolkit.preprocess.readers.lines import LARGEST_ROW_BYTES, iterate_line_spans, too_large, without_line_end
from toolkit.preprocess.readers.rows import Reason, Row, Span, row_from_text
from toolkit.preprocess.readers.streams import open_stream
from toolkit.preprocess.sources.source import Source
from toolkit.tables import broken_csv, csv_records

_SPAN_BYTES = 4 << 20


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


def iterate_tsv_spans(source: Source, text_field: str) -> Iterator[Span]:
    """The spans of a TSV file."""
    with open_stream(source) as stream:
        line = stream.file.readline(LARGEST_ROW_BYTES)
    if len(line) == LARGEST_ROW_BYTES:
        raise too_large(source, 0)
    names = without_line_end(line).removeprefix(codecs.BOM_UTF8).decode("utf-8", "backslashreplace").split("\t")
    parse = partial(_tsv_rows, _Header(names, text_field))
    yield from iterate_line_spans(source, parse, first=len(line))


def _tsv_rows(header: _Header, content: bytes) -> list[Row]:
    return [_tsv_row(header, without_line_end(line)) for line in io.BytesIO(content)]


def _tsv_row(header: _Header, line: bytes) -> Row:
    try:
        return header.row(line.decode("utf-8").split("\t")) if line else Row("", Reason.EMPTY)
    except UnicodeDecodeError as error:
        return Row("", Reason.NOT_UTF8, f"{error.reason} at byte {error.start}")


def iterate_csv_spans(source: Source, text_field: str, *, delimiter: str) -> Iterator[Span]:
    """The spans of a CSV file; UserError with the line if it does not parse."""
    place = f"the source {source.name}"
    with open_stream(source) as stream:
        lines = _Lines(stream.file, source)
        records, rows = csv_records(place, lines, delimiter=delimiter), list[Row]()
        _, last, names = next(records, (1, 1, []))
        if last > 1:
            raise broken_csv(place, f"its header takes {last:,} lines")
        header, start = _Header(names, text_field), lines.num_bytes
        for first, last, fields in records:
            row = header.row(fields) if fields else Row("", Reason.EMPTY)
            if row.reason is Reason.WRONG_COLUMNS and last > first:
                raise broken_csv(place, f"lines {first:,} to {last:,} are one record of {row.found}")
            rows.append(Row("", Reason.NOT_UTF8, lines.not_utf8) if lines.not_utf8 else row)
            lines.not_utf8 = ""
            if lines.num_bytes - start >= _SPAN_BYTES:
                yield Span(stream.source_position(), partial(list, rows))
                rows, start = [], lines.num_bytes
        if rows:
            yield Span(stream.source_position(), partial(list, rows))


class _Lines:
    """Lines of a file for the csv module; tracks the bytes read, and what was not UTF-8 since `not_utf8` was reset."""

    def __init__(self, file: BinaryIO, source: Source) -> None:
        self._file, self._source, self.num_bytes, self.not_utf8 = file, source, 0, ""

    def __iter__(self) -> Iterator[str]:
        for line in iter(partial(self._file.readline, LARGEST_ROW_BYTES), b""):
            if len(line) == LARGEST_ROW_BYTES:
                raise too_large(self._source, self.num_bytes)
            content = line if self.num_bytes else line.removeprefix(codecs.BOM_UTF8)
            self.num_bytes += len(line)
            try:
                yield content.decode("utf-8")
            except UnicodeDecodeError as error:
                self.not_utf8 = f"{error.reason} at byte {error.start} of a line"
                yield content.decode("utf-8", "replace")
