"""JSON arrays of any size, parsed piece by piece.

Only parsing tells where an element ends, so the thread that finds the spans does it. For the same reason a syntax error
is fatal: it is unknown how many rows follow, and counting the rest as one bad row would hide the loss.
"""

import codecs
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import NoReturn

from toolkit.core.errors import UserError
from toolkit.preprocess.readers.rows import Reason, Row, Span, row_from_bytes, row_from_json, without_lone_surrogates
from toolkit.preprocess.readers.streams import ByteStream, open_stream
from toolkit.preprocess.sources.source import Source

_SPAN_CHARACTERS = 4 << 20
_MOST_ELEMENT_CHARACTERS = 1 << 30
_SPACE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile(r"\\u[dD]").search
# This close to the end of what is read, a value, number or escape may be cut off rather than broken.
_LOOK_AHEAD = 16


def holds_array(source: Source) -> bool:
    """Tell one array from lines in a `.json` file; a single object over several lines is an error."""
    with open_stream(source) as stream:
        first = stream.file.read(1 << 16).removeprefix(codecs.BOM_UTF8).lstrip(b" \t\r\n")
    if re.match(rb"\{[ \t\r]*\n", first):
        raise UserError(
            f"the source {source.name} is one JSON object written over several lines. "
            "Write one object per line, or one array of objects."
        )
    return first.startswith(b"[")


def iterate_array_spans(source: Source, text_field: str, *, start: int) -> Iterator[Span]:
    """The spans of one JSON array, from the element at byte `start` on."""
    with open_stream(source, start=start) as stream:
        array = _Array(source, stream, start, text_field)
        while array.has_more:
            first = array.num_bytes
            rows = array.take(_SPAN_CHARACTERS)
            yield Span(first, stream.source_position(), partial(list, rows))


class _Array:
    """An array that is parsed from the front; a few megabytes of it, or its largest element, are in memory.

    Attributes:
        num_bytes: byte of the decompressed file at which the next element starts.
        has_more: whether there is a next element.
    """

    def __init__(self, source: Source, stream: ByteStream, start: int, text_field: str) -> None:
        self._name, self._stream, self._text_field = source.name, stream, text_field
        # Bytes that are not UTF-8 become lone surrogates, so that only their own row is bad.
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._parse = json.JSONDecoder().raw_decode
        self._text, self._position, self._is_at_end = "", 0, False
        self.num_bytes, self.has_more = start, True
        if start == 0:
            while "[" not in self._text and not self._is_at_end:
                self._read_more()
            self._advance(self._text.index("[") + 1)
            if self._text[self._position : self._position + 1] == "]":
                self._advance(self._position + 1)
                self._end()

    def take(self, num_characters: int) -> list[Row]:
        self._text, self._position = self._text[self._position :], 0
        rows: list[Row] = []
        while self.has_more and self._position < num_characters:
            value, end = self._element()
            is_last = self._text[end] == "]"
            rows.append(self._row(value, self._advance(end + 1)))
            if is_last:
                self._end()
        return rows

    def _element(self) -> tuple[object, int]:
        """The next value, or a bad row in its place, and the index of the comma or bracket after it."""
        parse, bad = self._parse, None
        while True:
            end = len(self._text)
            try:
                value, end = parse(self._text, self._position)
                end = self._after_space(end)
                # The next character also proves that a number is complete.
                if self._text[end : end + 1] in (",", "]"):
                    return bad or value, end
                problem = "Expecting ',' delimiter"
            except json.JSONDecodeError as error:
                problem, end = error.msg, len(self._text) if error.msg.startswith("Unterminated") else error.pos
            except ValueError as error:  # an integer of more digits than Python converts; only its own row is bad
                parse, bad = json.JSONDecoder(parse_int=str).raw_decode, Row("", Reason.BROKEN_JSON, str(error))
                continue
            except RecursionError as error:
                self._fail(str(error), self._position)
            if self._is_at_end or end < len(self._text) - _LOOK_AHEAD:
                self._fail(problem, end)
            self._read_more()

    def _row(self, value: object, written: str) -> Row:
        if isinstance(value, Row):
            return value
        try:
            written.encode("utf-8")
        except UnicodeEncodeError:
            return row_from_bytes(written.encode("utf-8", "surrogateescape"))
        row = row_from_json(value, self._text_field)
        return without_lone_surrogates(row) if _SURROGATE(written) else row

    def _advance(self, index: int) -> str:
        """Move to the next character from `index` on that is not white space; returns what is skipped."""
        index = self._after_space(index)
        while index == len(self._text) and not self._is_at_end:
            self._read_more()
            index = self._after_space(index)
        skipped = self._text[self._position : index]
        self.num_bytes += _num_bytes(skipped)
        self._position = index
        return skipped

    def _end(self) -> None:
        if self._position < len(self._text):
            self._fail("extra data after its end", self._position)
        self.has_more = False

    def _read_more(self) -> None:
        content = self._stream.file.read(max(_SPAN_CHARACTERS, len(self._text) - self._position))
        self._text += self._decode(content, not content)
        self._is_at_end = not content
        if len(self._text) - self._position > _MOST_ELEMENT_CHARACTERS:
            self._fail("an element has more than 2^30 characters", self._position)

    def _after_space(self, index: int) -> int:
        space = _SPACE.match(self._text, index)
        assert space is not None
        return space.end()

    def _fail(self, problem: str, index: int) -> NoReturn:
        where = self.num_bytes + _num_bytes(self._text[self._position : index])
        if self._is_at_end and index >= len(self._text):
            problem = "it is cut off"
        raise UserError(
            f"the JSON array in {self._name} is broken at byte {where:,}: {problem.removesuffix(' at')}. "
            "The rows after it cannot be found; repair it, or write one object per line."
        )


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))
