r"""JSON lines and plain text, cut at line ends: byte ranges that workers read themselves, or decompressed bytes.

Lines end at `\n` only: text may hold U+2028, U+0085 and other characters that some readers take for line ends.
"""

import codecs
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO

from toolkit.core.errors import UserError
from toolkit.preprocess.readers.rows import Reason, Row, Span, row_from_bytes, row_from_line
from toolkit.preprocess.readers.streams import open_file, open_stream
from toolkit.preprocess.settings import TxtDocuments
from toolkit.preprocess.sources.source import Format, Source

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""First bytes of a file that `git lfs` has not downloaded."""
_SPAN_BYTES = 4 << 20
LARGEST_ROW_BYTES = 1 << 30

Parser = Callable[[bytes], list[Row]]


def line_parser(file_format: Format, *, text_field: str, txt_documents: TxtDocuments) -> Parser:
    """Parser of the rows of JSON lines or plain text."""
    if file_format is Format.TEXT:
        return {"file": _whole, "paragraph": _paragraphs, "line": _lines}[txt_documents]
    return lambda content: [row_from_line(line, text_field) for line in io.BytesIO(content)]


def iterate_line_spans(source: Source, parse: Parser, *, first: int = 0) -> Iterator[Span]:
    """The spans of a file whose rows are lines (or paragraphs, or the whole file), from byte `first` on."""
    if parse is _whole:
        yield Span(source.num_bytes, partial(_read_whole, source))
    elif source.compression is None:
        yield from _ranges(source, parse, first)
    else:
        yield from _pieces(source, parse, first)


def _ranges(source: Source, parse: Parser, start: int) -> Iterator[Span]:
    with open_file(source) as file:
        while start < source.num_bytes:
            file.seek(start + _SPAN_BYTES - 1)
            for _ in _rest_of_span(file, parse, source, start):
                pass
            end = min(file.tell(), source.num_bytes)
            yield Span(end, partial(_read_range, source, start, end, parse))
            start = end


def _pieces(source: Source, parse: Parser, start: int) -> Iterator[Span]:
    with open_stream(source) as stream:
        for place in range(0, start, _SPAN_BYTES):
            stream.file.read(min(_SPAN_BYTES, start - place))
        while content := stream.file.read(_SPAN_BYTES - 1):
            content = b"".join((content, *_rest_of_span(stream.file, parse, source, start)))
            yield Span(stream.source_position(), partial(_parse, content, start, parse))
            start += len(content)


def _rest_of_span(file: BinaryIO, parse: Parser, source: Source, start: int) -> Iterator[bytes]:
    """Bytes that complete a span of sufficient size: the rest of the line, or of the paragraph up to a blank line."""
    left, is_first = LARGEST_ROW_BYTES, True
    while line := file.readline(left):
        if not (left := left - len(line)):
            raise too_large(source, start)
        yield line
        if parse is not _paragraphs or (line.isspace() and not is_first):
            return
        is_first = False


def too_large(source: Source, start: int) -> UserError:
    """The error for a row that begins after byte `start` and would fill memory."""
    return UserError(
        f"the source {source.name} has a row of more than {LARGEST_ROW_BYTES:,} bytes, which begins within "
        f"{_SPAN_BYTES:,} bytes after byte {start:,} of its text. Cut it at lines, or leave it out: a small compressed "
        "file of that kind may be made to fill memory."
    )


def _read_range(source: Source, start: int, end: int, parse: Parser) -> list[Row]:
    with open_file(source, (start, end)) as file:
        file.seek(start)
        content = file.read(end - start)
    return _parse(content, start, parse)


def _read_whole(source: Source) -> list[Row]:
    content = bytearray()
    with open_stream(source) as stream:
        while piece := stream.file.read(_SPAN_BYTES):
            content += piece
            if len(content) > LARGEST_ROW_BYTES:
                raise too_large(source, 0)
    return _parse(bytes(content), 0, _whole)


def _parse(content: bytes, start: int, parse: Parser) -> list[Row]:
    if start == 0 and content.startswith(LFS_POINTER):
        return [Row("", Reason.WRONG_TYPE, "a Git LFS pointer")]
    # A byte-order mark at the start of a file is neither JSON nor part of the text.
    return parse(content.removeprefix(codecs.BOM_UTF8) if start == 0 else content)


def _whole(content: bytes) -> list[Row]:
    return [row_from_bytes(content)]


def _lines(content: bytes) -> list[Row]:
    return [row_from_bytes(without_line_end(line)) for line in io.BytesIO(content)]


def _paragraphs(content: bytes) -> list[Row]:
    rows: list[Row] = []
    paragraph: list[bytes] = []
    for line in (*io.BytesIO(content), b"\n"):
        if not line.isspace():
            paragraph.append(line)
        elif paragraph:
            rows.append(row_from_bytes(without_line_end(b"".join(paragraph))))
            paragraph = []
    return rows


def without_line_end(content: bytes) -> bytes:
    r"""Content without the `\n` at the end and the `\r` before it."""
    return content.removesuffix(b"\n").removesuffix(b"\r") if content.endswith(b"\n") else content
