r"""Read a source file row by row, in memory that does not grow with the file: a text, or why there is none.

Lines end at `\\n` only: text may hold U+2028, U+0085 and other characters that some readers take for line ends.
"""

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, BinaryIO

from toolkit.core.errors import UserError
from toolkit.preprocess.settings import TxtDocuments
from toolkit.preprocess.sources import Format, Source

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["Reason", "Row", "read_rows"]

# Parquet is decoded in steps of about this many bytes of text, whatever the size of its row groups.
_BATCH_BYTES = 4 << 20
_MOST_BATCH_ROWS = 8192


class Reason(StrEnum):
    """Why a row gives no document; as corpus.json counts them. All but the last are bad rows."""

    BROKEN_JSON = "broken JSON"
    MISSING_FIELD = "missing field"
    WRONG_TYPE = "wrong type"
    NOT_UTF8 = "not UTF-8"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source: its text, or the reason why it has none and what was found.

    `end` is how many bytes of the source are read by then; of a compressed one, about.
    """

    text: str
    end: int
    reason: Reason | None = None
    found: str = ""


def read_rows(source: Source, *, text_field: str, txt_documents: TxtDocuments) -> Iterator[Row]:
    """The rows of a source, in order.

    Raises:
        UserError: the file cannot be read, or is not the Parquet that its name says.
    """
    if source.format is Format.PARQUET:
        yield from _read_parquet(source, text_field)
        return
    try:
        with source.path.open("rb") as file:
            # A byte-order mark signs the file as UTF-8; it is neither JSON nor part of a text.
            if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                file.seek(0)
            if source.format is Format.JSON_LINES:
                yield from _read_json_lines(file, text_field)
            else:
                yield from _read_txt(file, txt_documents)
    except OSError as error:
        raise UserError(f"The source {source.path} cannot be read: {error.strerror}.") from error


def _read_json_lines(file: BinaryIO, text_field: str) -> Iterator[Row]:
    end = file.tell()
    for line in file:
        end += len(line)
        if line.isspace():
            yield Row("", end, Reason.EMPTY)
            continue
        try:
            row = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            yield Row("", end, Reason.NOT_UTF8, f"{error.reason} at byte {error.start}")
        except json.JSONDecodeError as error:  # its text would count lines, and this is always line 1
            yield Row("", end, Reason.BROKEN_JSON, f"{error.msg} at character {error.pos + 1}")
        except (ValueError, RecursionError) as error:
            yield Row("", end, Reason.BROKEN_JSON, str(error))
        else:
            yield _from_json(row, text_field, end)


def _from_json(row: object, text_field: str, end: int) -> Row:
    if not isinstance(row, dict):
        return Row("", end, Reason.WRONG_TYPE, f"the row is a JSON {_json_type(row)}, not an object")
    if text_field not in row:
        keys = ", ".join(map(repr, list(row)[:6])) or "none"
        return Row("", end, Reason.MISSING_FIELD, f"no {text_field!r}; its keys: {keys}")
    text = row[text_field]
    if not isinstance(text, str):
        return Row("", end, Reason.WRONG_TYPE, f"{text_field!r} is a JSON {_json_type(text)}, not a string")
    return _from_text(text, end)


def _json_type(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _from_text(text: str, end: int) -> Row:
    if not text:
        return Row("", end, Reason.EMPTY)
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            # JSON can spell half of a surrogate pair, which is no character and has no UTF-8 form.
            return Row("", end, Reason.NOT_UTF8, f"lone surrogate at character {error.start}")
    return Row(text, end)


def _from_bytes(content: bytes, end: int) -> Row:
    try:
        return _from_text(content.decode("utf-8"), end)
    except UnicodeDecodeError as error:
        return Row("", end, Reason.NOT_UTF8, f"{error.reason} at byte {error.start}")


def _read_txt(file: BinaryIO, documents: TxtDocuments) -> Iterator[Row]:
    if documents == "file":
        content = file.read()
        yield _from_bytes(content, file.tell())
        return
    end = file.tell()
    if documents == "line":
        for line in file:
            end += len(line)
            yield _from_bytes(_without_line_end(line), end)
        return
    paragraph: list[bytes] = []
    for line in file:
        end += len(line)
        if not line.isspace():
            paragraph.append(line)
        elif paragraph:
            yield _from_bytes(_without_line_end(b"".join(paragraph)), end)
            paragraph = []
    if paragraph:
        yield _from_bytes(_without_line_end(b"".join(paragraph)), end)


def _without_line_end(content: bytes) -> bytes:
    r"""Without the `\n` at the end and the `\r` before it."""
    return content.removesuffix(b"\n").removesuffix(b"\r") if content.endswith(b"\n") else content


def _read_parquet(source: Source, text_field: str) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Streams column chunks in pieces; the default reads whole row groups ahead.
        with pq.ParquetFile(source.path, buffer_size=1 << 20, pre_buffer=False) as file:
            yield from _read_row_groups(file, source, text_field)
    except (pa.ArrowException, OSError, ValueError) as error:
        first_line = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"The source {source.path} is not a Parquet file that can be read: {first_line}") from error


def _read_row_groups(file: "pq.ParquetFile", source: Source, text_field: str) -> Iterator[Row]:
    schema, metadata = file.schema_arrow, file.metadata
    if text_field not in schema.names:
        found = f"no column {text_field!r}; there are: {', '.join(schema.names)}"
        yield from (Row("", source.num_bytes, Reason.MISSING_FIELD, found) for _ in range(metadata.num_rows))
        return
    arrow_type = schema.field(schema.names.index(text_field)).type
    if not _holds_text(arrow_type):
        found = f"column {text_field!r} has type {arrow_type}"
        yield from (Row("", source.num_bytes, Reason.WRONG_TYPE, found) for _ in range(metadata.num_rows))
        return
    done = 0
    for group in range(metadata.num_row_groups):
        sizes = metadata.row_group(group)
        per_row = max(1, sizes.total_byte_size // max(1, sizes.num_rows))
        batch_size = min(_MOST_BATCH_ROWS, max(1, _BATCH_BYTES // per_row))
        for batch in file.iter_batches(batch_size, row_groups=[group], columns=[text_field], use_threads=False):
            for value in batch.column(0):
                done += 1
                yield _from_scalar(value, source.num_bytes * done // metadata.num_rows)


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


def _from_scalar(value: "pa.Scalar", end: int) -> Row:
    try:
        text = value.as_py()
    except UnicodeDecodeError as error:  # Arrow does not check the bytes of a string column.
        return Row("", end, Reason.NOT_UTF8, f"{error.reason} at byte {error.start}")
    if text is None:
        return Row("", end, Reason.WRONG_TYPE, "null, not a string")
    return _from_bytes(text, end) if isinstance(text, bytes) else _from_text(text, end)
