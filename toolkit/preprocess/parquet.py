"""Parquet, in spans of whole row groups where they are small, streamed in batches where they are large."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from toolkit.core.errors import UserError
from toolkit.preprocess.readers import Reason, Row, Span, row_from_bytes, row_from_text
from toolkit.preprocess.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["iterate_parquet_spans"]

# Parquet is decoded in steps of about this many bytes of text, whatever the size of its row groups.
_BATCH_BYTES = 4 << 20
_MOST_BATCH_ROWS = 8192


def iterate_parquet_spans(source: Source, text_field: str, *, start: int) -> Iterator[Span]:
    """The spans of a Parquet file, from row `start` on."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Streams column chunks in pieces; the default reads whole row groups ahead.
        with pq.ParquetFile(source.path, buffer_size=1 << 20, pre_buffer=False) as file:
            yield from _spans(file, source, text_field, start)
    except (pa.ArrowException, OSError, ValueError) as error:
        first_line = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"The source {source.path} is not a Parquet file that can be read: {first_line}") from error


def _spans(file: "pq.ParquetFile", source: Source, text_field: str, start: int) -> Iterator[Span]:
    num_rows = file.metadata.num_rows
    bad = _row_without_text(file, text_field)
    if bad is not None:
        for first in range(start, num_rows, _MOST_BATCH_ROWS):
            count = min(_MOST_BATCH_ROWS, num_rows - first)
            end = source.num_bytes * (first + count) // num_rows
            yield Span(first, end, partial(lambda row, count: [row] * count, bad, count))
        return
    done = 0
    for group in range(file.metadata.num_row_groups):
        sizes = file.metadata.row_group(group)
        if done + sizes.num_rows <= start:
            done += sizes.num_rows
            continue
        per_row = max(1, sizes.total_byte_size // max(1, sizes.num_rows))
        batch_size = min(_MOST_BATCH_ROWS, max(1, _BATCH_BYTES // per_row))
        for batch in file.iter_batches(batch_size, row_groups=[group], columns=[text_field], use_threads=False):
            first, done = done, done + len(batch)
            if done > start:
                column = batch.column(0).slice(max(0, start - first))
                yield Span(max(start, first), source.num_bytes * done // num_rows, partial(_rows, column))


def _row_without_text(file: "pq.ParquetFile", text_field: str) -> Row | None:
    """What every row of the file is, if the column is missing or holds something else."""
    schema = file.schema_arrow
    if text_field not in schema.names:
        return Row("", Reason.MISSING_FIELD, f"no column {text_field!r}; there are: {', '.join(schema.names)}")
    arrow_type = schema.field(schema.names.index(text_field)).type
    if not _holds_text(arrow_type):
        return Row("", Reason.WRONG_TYPE, f"column {text_field!r} has type {arrow_type}")
    return None


def _holds_text(arrow_type: "pa.DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    kinds = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
    )
    return any(is_kind(arrow_type) for is_kind in kinds)


def _rows(column: "pa.Array") -> list[Row]:
    return [_from_scalar(value) for value in column]


def _from_scalar(value: "pa.Scalar") -> Row:
    try:
        text = value.as_py()
    except UnicodeDecodeError as error:  # Arrow does not check the bytes of a string column.
        return Row("", Reason.NOT_UTF8, f"{error.reason} at byte {error.start}")
    if text is None:
        return Row("", Reason.WRONG_TYPE, "null, not a string")
    return row_from_bytes(text) if isinstance(text, bytes) else row_from_text(text)
