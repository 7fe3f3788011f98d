r"""JSON lines and plain text, cut at line ends into byte ranges that each worker reads for itself."""

import codecs
import io
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from toolkit.core.errors import UserError
from toolkit.preprocess.readers import Row, Span, row_from_bytes, row_from_line
from toolkit.preprocess.settings import TxtDocuments
from toolkit.preprocess.sources import Format, Source

__all__ = ["iterate_line_spans"]

_SPAN_BYTES = 4 << 20


def iterate_line_spans(source: Source, *, text_field: str, txt_documents: TxtDocuments, start: int) -> Iterator[Span]:
    """The spans of a `.jsonl` or `.txt` file; each reads its own bytes of the file."""
    parse = _parser(source.format, text_field, txt_documents)
    try:
        with source.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # An empty .txt is one document, an empty one; an empty file of lines has none.
            if parse is _whole and start == 0:
                yield Span(0, size, partial(_read, source.path, 0, size, parse))
                return
            while start < size and parse is not _whole:
                end = _cut(file, start, size, is_between_paragraphs=parse is _paragraphs)
                yield Span(start, end, partial(_read, source.path, start, end, parse))
                start = end
    except OSError as error:
        raise _unreadable(source.path, error) from error


def _cut(file: BinaryIO, start: int, size: int, *, is_between_paragraphs: bool) -> int:
    """Where a span ends: behind the first line end after its worth of bytes, or behind a blank line after that."""
    if start + _SPAN_BYTES >= size:
        return size
    file.seek(start + _SPAN_BYTES - 1)
    file.readline()
    for line in file if is_between_paragraphs else ():
        if line.isspace():
            break
    return min(file.tell(), size)


def _read(path: Path, start: int, end: int, parse: Callable[[bytes], list[Row]]) -> list[Row]:
    try:
        with path.open("rb") as file:
            file.seek(start)
            content = file.read(end - start)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(content) < end - start:
        raise UserError(f"The source {path} became shorter while it was read. Start again when nothing writes to it.")
    # A byte-order mark signs the file as UTF-8; it is neither JSON nor part of a text.
    return parse(content.removeprefix(codecs.BOM_UTF8) if start == 0 else content)


def _parser(file_format: Format, text_field: str, txt_documents: TxtDocuments) -> Callable[[bytes], list[Row]]:
    if file_format is Format.JSON_LINES:
        return lambda content: [row_from_line(line, text_field) for line in io.BytesIO(content)]
    return {"file": _whole, "paragraph": _paragraphs, "line": _lines}[txt_documents]


def _whole(content: bytes) -> list[Row]:
    return [row_from_bytes(content)]


def _lines(content: bytes) -> list[Row]:
    return [row_from_bytes(_without_line_end(line)) for line in io.BytesIO(content)]


def _paragraphs(content: bytes) -> list[Row]:
    rows: list[Row] = []
    paragraph: list[bytes] = []
    for line in (*io.BytesIO(content), b"\n"):
        if not line.isspace():
            paragraph.append(line)
        elif paragraph:
            rows.append(row_from_bytes(_without_line_end(b"".join(paragraph))))
            paragraph = []
    return rows


def _without_line_end(content: bytes) -> bytes:
    r"""Without the `\n` at the end and the `\r` before it."""
    return content.removesuffix(b"\n").removesuffix(b"\r") if content.endswith(b"\n") else content


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"The source {path} cannot be read: {error.strerror}.")
