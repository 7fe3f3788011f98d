"""Rows and spans: what every reader returns, and how one JSON value becomes a row."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import orjson

from toolkit.core.text import json_kind
from toolkit.tables import load_any_json


class Reason(StrEnum):
    """Why a row is not a document; corpus.json counts rows by reason."""

    BROKEN_JSON = "broken JSON"
    WRONG_COLUMNS = "wrong number of columns"
    MISSING_FIELD = "missing field"
    WRONG_TYPE = "wrong type"
    NOT_UTF8 = "not UTF-8"
    CANNOT_ENCODE = "the tokenizer cannot write it"
    EMPTY = "empty"
    NEAR_DUPLICATE = "near-duplicate"
    TEST_TEXT = "holds a test text"

    @property
    def is_bad(self) -> bool:
        """True if the row should have had a text but did not."""
        return self not in (Reason.EMPTY, Reason.NEAR_DUPLICATE, Reason.TEST_TEXT)


class Row(NamedTuple):
    """A row of a source: its text, or the reason why it has none and what was found instead."""

    text: str
    reason: Reason | None = None
    found: str = ""


@dataclass(frozen=True)
class Span:
    """Consecutive rows of one source, not read yet.

    Attributes:
        end_bytes: bytes of the source file (compressed bytes if it is compressed) up to the end of the span.
        read: reads the rows; called once, from any thread.
    """

    end_bytes: int
    read: Callable[[], list[Row]]


def row_from_line(line: bytes, text_field: str) -> Row:
    """The row of a line of a JSON-lines file."""
    try:
        return row_from_json(orjson.loads(line), text_field)
    except orjson.JSONDecodeError:
        return _row_from_doubtful_line(line, text_field)


def _row_from_doubtful_line(line: bytes, text_field: str) -> Row:
    if not line or line.isspace():
        return Row("", Reason.EMPTY)
    try:
        value = load_any_json(line)
    except UnicodeDecodeError as error:
        return Row("", Reason.NOT_UTF8, f"{error.reason} at byte {error.start}")
    except json.JSONDecodeError as error:  # its message has a line number, which is always 1 here
        return Row("", Reason.BROKEN_JSON, f"{error.msg} at character {error.pos + 1}")
    except ValueError as error:
        return Row("", Reason.BROKEN_JSON, str(error))
    return without_lone_surrogates(row_from_json(value, text_field))


def row_from_json(value: object, text_field: str) -> Row:
    """The row of a parsed JSON value, which should be an object with a string in `text_field`."""
    if not isinstance(value, dict):
        return Row("", Reason.WRONG_TYPE, f"the row is {json_kind(value)}, not an object")
    if text_field not in value:
        keys = ", ".join(map(repr, list(value)[:6])) or "none"
        return Row("", Reason.MISSING_FIELD, f"no {text_field!r}; its keys: {keys}")
    text = value[text_field]
    if not isinstance(text, str):
        return Row("", Reason.WRONG_TYPE, f"{text_field!r} is {json_kind(text)}, not a string")
    return row_from_text(text)


def without_lone_surrogates(row: Row) -> Row:
    r"""The row, or a bad one if its text has a lone surrogate: escaped (`\ud800`), or in place of an invalid byte."""
    try:
        row.text.encode("utf-8")
    except UnicodeEncodeError as error:
        is_byte = "\udc80" <= row.text[error.start] <= "\udcff"
        what = "a byte that is not UTF-8" if is_byte else "lone surrogate"
        return Row("", Reason.NOT_UTF8, f"{what} at character {error.start}")
    return row


def row_from_text(text: str) -> Row:
    """The row of a text, which may be empty."""
    return Row(text) if text else Row("", Reason.EMPTY)


def row_from_bytes(content: bytes) -> Row:
    """The row of a text encoded as UTF-8."""
    try:
        return row_from_text(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Row("", Reason.NOT_UTF8, f"{error.reason} at byte {error.start}")
