"""Parquet, local or on the hub: spans of whole row groups if these are small, streamed if they are large.

A worker reads small row groups itself, with its own file handle and the footer that was parsed once. A large one is
decoded piece by piece by the thread that finds the spans, so memory does not depend on its size.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from itertools import accumulate
from types import FunctionType
from typing import TYPE_CHECKING, BinaryIO

from toolkit.preprocess.readers.hub_file import HubFile
from toolkit.preprocess.readers.rows import Reason, Row, Span, row_from_bytes, row_from_text
from toolkit.preprocess.readers.streams import errors_naming, open_file, remote_file
from toolkit.preprocess.sources.source import Source
from toolkit.storage import is_url

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_SPAN_BYTES = 4 << 20
# A row group with more bytes or rows than these is streamed. The footer understates dictionary-encoded columns.
_MOST_GROUP_BYTES = 8 << 20
_MOST_ROWS = 8192
_BUFFER_BYTES = 1 << 20
_TEXT_TYPES = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")

_File = BinaryIO | io.RawIOBase
_Open = Callable[..., AbstractContextManager[_File]]
"""Opens a file for one thread, which will read these ranges (first byte, last byte + 1) in this order."""


@dataclass(frozen=True)
class _Chunk:
    """A column of a row group: bytes start..stop - 1 of the file; `unpacked_bytes` when decompressed."""

    start: int
    stop: int
    num_rows: int
    unpacked_bytes: int


@dataclass(frozen=True)
class _Table:
    source: Source
    open_ranges: _Open
    text_field: str
    metadata: "pq.FileMetaData"
    chunks: Sequence[_Chunk]

    def open(self, *groups: int) -> AbstractContextManager[_File]:
        """Open the file for one thread, which will read the text of these row groups."""
        return self.open_ranges(*((self.chunks[group].start, self.chunks[group].stop) for group in groups))

    def span(self, stop: int, rows: Callable[[], list[Row]]) -> Span:
        return Span(self.source.num_bytes * stop // self.metadata.num_rows, rows)


def iterate_parquet_spans(source: Source, text_field: str) -> Iterator[Span]:
    """The spans of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _opener(source) as open_ranges, errors_naming(source):
        with open_ranges() as file:
            metadata = pq.read_metadata(pa.PythonFile(file, "r"))
        bad = _row_without_text(metadata.schema.to_arrow_schema(), text_field)
        if bad is not None:
            yield from _bad_spans(source, bad, metadata.num_rows)
            return
        # Arrow (26) aborts the process if the sizes in a damaged footer contradict one another. faulthandler, which the
        # command enables, then shows the file's name for this call.
        chunks_of = FunctionType(_chunks.__code__.replace(co_filename=source.name), globals())
        yield from _text_spans(_Table(source, open_ranges, text_field, metadata, chunks_of(metadata, text_field)))


def _chunks(metadata: "pq.FileMetaData", name: str) -> list[_Chunk]:
    """The chunks of a top-level column that is not nested, one for each row group."""
    number = [metadata.schema.column(number).path for number in range(metadata.num_columns)].index(name)
    chunks = []
    for column in (metadata.row_group(group).column(number) for group in range(metadata.num_row_groups)):
        # Some writers give 0 if there is no dictionary page.
        start = min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)
        stop = start + column.total_compressed_size
        chunks.append(_Chunk(start, stop, column.num_values, column.total_uncompressed_size))
    num_rows = sum(chunk.num_rows for chunk in chunks)
    if num_rows != metadata.num_rows or any(min(astuple(chunk)) < 0 for chunk in chunks):
        raise ValueError(f"its footer counts {metadata.num_rows} rows, its row groups {num_rows}")
    return chunks


@contextmanager
def _opener(source: Source) -> Iterator[_Open]:
    if not (source.revision or is_url(source.name)):
        yield lambda *_: open_file(source)
        return
    with HubFile(source) if source.revision else remote_file(source) as file:
        yield file.open


def _parquet(file: _File, metadata: "pq.FileMetaData", *, buffer_size: int) -> "pq.ParquetFile":
    """The file for pyarrow, which reads a column chunk in pieces of `buffer_size` bytes; 0 reads it whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # The default would read whole row groups ahead.
    options = {"pre_buffer": False, "buffer_size": buffer_size, "page_checksum_verification": True}
    return pq.ParquetFile(pa.PythonFile(file, "r"), metadata=metadata, **options)


def _bad_spans(source: Source, row: Row, num_rows: int) -> Iterator[Span]:
    for first in range(0, num_rows, _MOST_ROWS):
        stop = min(first + _MOST_ROWS, num_rows)
        yield Span(source.num_bytes * stop // num_rows, partial(list, [row] * (stop - first)))


def _text_spans(table: _Table) -> Iterator[Span]:
    # First row of each row group, and the total number of rows.
    starts = list(accumulate((chunk.num_rows for chunk in table.chunks), initial=0))
    small: list[int] = []
    for group, chunk in enumerate(table.chunks):
        if not chunk.num_rows:
            continue
        is_small = chunk.unpacked_bytes <= _MOST_GROUP_BYTES and chunk.num_rows <= _MOST_ROWS
        if is_small:
            small.append(group)
        if small and (not is_small or sum(table.chunks[number].unpacked_bytes for number in small) >= _SPAN_BYTES):
            yield _small_span(table, starts, small)
            small = []
        if not is_small:
            yield from _streamed_spans(table, group, starts[group])
    if small:
        yield _small_span(table, starts, small)


def _small_span(table: _Table, starts: Sequence[int], groups: list[int]) -> Span:
    first, stop = starts[groups[0]], starts[groups[-1] + 1]
    return table.span(stop, partial(_read_groups, table, table.open(*groups), groups, stop - first))


def _read_groups(table: _Table, opened: AbstractContextManager[_File], groups: list[int], num_rows: int) -> list[Row]:
    with errors_naming(table.source), opened as file, _parquet(file, table.metadata, buffer_size=0) as parquet:
        read = parquet.read_row_groups(groups, columns=[table.text_field], use_threads=False)
        column = read.column(read.schema.names.index(table.text_field))
        _check_complete(len(column), num_rows)
        return [row for chunk in column.chunks for row in _rows(chunk)]


def _streamed_spans(table: _Table, group: int, first: int) -> Iterator[Span]:
    """The spans of a large row group; `first` is the number of its first row."""
    chunk, stop = table.chunks[group], first
    batch_rows = max(1, min(_MOST_ROWS, _SPAN_BYTES * chunk.num_rows // max(1, chunk.unpacked_bytes)))
    with table.open(group) as file, _parquet(file, table.metadata, buffer_size=_BUFFER_BYTES) as parquet:
        for batch in parquet.iter_batches(
            batch_rows, row_groups=[group], columns=[table.text_field], use_threads=False
        ):
            column = batch.column(batch.schema.names.index(table.text_field))
            stop += len(batch)
            if len(column):
                yield table.span(stop, partial(_read_batch, table.source, column))
    _check_complete(stop - first, chunk.num_rows)


def _read_batch(source: Source, column: "pa.Array") -> list[Row]:
    with errors_naming(source):
        return _rows(column)


def _check_complete(num_rows: int, expected: int) -> None:
    if num_rows != expected:
        raise ValueError(f"it holds {num_rows} rows where its footer counts {expected}")


def _row_without_text(schema: "pa.Schema", text_field: str) -> Row | None:
    """The bad row that stands for every row if the column is missing or has another type; else None."""
    import pyarrow as pa

    if text_field not in schema.names:
        return Row("", Reason.MISSING_FIELD, f"no column {text_field!r}; its columns: {', '.join(schema.names)}")
    arrow_type = schema.field(schema.names.index(text_field)).type
    if str(arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type) not in _TEXT_TYPES:
        return Row("", Reason.WRONG_TYPE, f"column {text_field!r} has type {arrow_type}")
    return None


def _rows(column: "pa.Array") -> list[Row]:
    try:
        return [_row(value) for value in column.to_pylist()]
    except UnicodeDecodeError:  # Arrow does not check the bytes of a string column.
        return [_row_of_scalar(value) for value in column]


def _row_of_scalar(value: "pa.Scalar") -> Row:
    try:
        return _row(value.as_py())
    except UnicodeDecodeError as error:
        return Row("", Reason.NOT_UTF8, f"{error.reason} at byte {error.start}")


def _row(value: str | bytes | None) -> Row:
    if value is None:
        return Row("", Reason.WRONG_TYPE, "null, not a string")
    return row_from_bytes(value) if isinstance(value, bytes) else row_from_text(value)
