"""Reading of data files, with one message for each thing that can be wrong with a file or a line of JSON."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.core.text import json_kind


def read_text(path: Path, *, what_to_give: str) -> str:
    """The content of a file in UTF-8, with or without a byte order mark.

    Args:
        path: of the file.
        what_to_give: ends the message where there is no such file.

    Raises:
        UserError: the file is missing, a folder, unreadable, or not UTF-8.
    """
    with reading(path, what_to_give=what_to_give):
        return path.read_bytes().decode("utf-8-sig")


@contextmanager
def reading(path: Path, *, what_to_give: str) -> Iterator[None]:
    """Turn what goes wrong inside the block, which reads a file, into one message (see `read_text`)."""
    if not path.is_file():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}. {what_to_give}")
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid UTF-8 at byte {error.start:,}. Save it as UTF-8.") from error
    except OSError as error:
        raise UserError(
            f"could not read {path}: {error.strerror or error}. Check its permissions, or give another file."
        ) from error


def parse_object(place: str, line: str | bytes, *, loads: Callable[[Any], Any] = json.loads) -> dict[str, Any]:
    """The JSON object of a line.

    Args:
        place: file and line, for messages.
        line: of a file of JSON lines.
        loads: `json.loads`, or `orjson.loads`, which is faster, but takes no NaN and no integers above 64 bits.

    Raises:
        UserError: the line is not JSON, or another kind of value.
    """
    try:
        row = loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: not valid JSON: {error.msg}, column {error.colno}. Correct that line.") from error
    if not isinstance(row, dict):
        raise UserError(f"{place}: expected a JSON object, got {json_kind(row)}. Write one object per line.")
    return row
