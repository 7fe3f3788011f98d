r"""Reading of data files: one message for each thing that can be wrong, and tables as rows of dictionaries.

`.tsv` and `.txt` are cut at tabs and have no quoting: a quotation mark is a character like any other. `.csv` is quoted
as RFC 4180 says. In all three every value is a string; `.jsonl` and `.parquet` keep their types. Lines end at `\n` (or
`\r\n`) only.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.core.text import counted, json_kind


def read_text(path: Path, *, what_to_give: str) -> str:
    """Content of a file in UTF-8, with or without a byte order mark; `what_to_give` ends the message without it."""
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


def load_json(text: str | bytes, *, loads: Callable[[Any], Any] = json.loads) -> Any:
    """The value of JSON whose strings can be tokenized, and written again.

    A ValueError where there is none, a JSONDecodeError where the text is not JSON.
    """
    try:
        value = loads(text)
    except RecursionError:
        raise ValueError("lists or objects are nested too deep") from None
    # Of a pair such as \ud83d\ude00 one half alone; `orjson` takes none.
    if isinstance(text, str) and "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def parse_object(place: str, line: str | bytes, *, loads: Callable[[Any], Any] = json.loads) -> dict[str, Any]:
    """The JSON object of a line.

    `orjson.loads` is faster than `json.loads`, but takes no NaN and no integers above 64 bits.
    """
    try:
        row = load_json(line, loads=loads)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: not valid JSON: {error.msg}, column {error.colno}. Correct that line.") from error
    except ValueError as error:
        raise UserError(f"{place}: could not be read: {error}. Correct that line.") from error
    if not isinstance(row, dict):
        raise UserError(f"{place}: expected a JSON object, got {json_kind(row)}. Write one object per line.")
    return row


TableRow = dict[str, object]


@dataclass(frozen=True)
class Table:
    """The rows of a file, and the names of its columns."""

    path: Path
    columns: tuple[str, ...]
    rows: list[TableRow]


def read_table(path: Path) -> Table:
    """Read a `.tsv`, `.txt`, `.csv`, `.jsonl` or `.parquet` file."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        kind = "a folder" if path.is_dir() else f"a {path.suffix} file" if path.suffix else "a file without an ending"
        raise UserError(f"{path}: expected a table of examples, got {kind}. {_WHAT_TO_GIVE}")
    with reading(path, what_to_give=_WHAT_TO_GIVE):
        columns, rows = reader(path)
    if not rows:
        raise UserError(f"{path}: no examples in this file. Give one with a row per example.")
    return Table(path, columns, rows)


def _read_tsv(path: Path) -> tuple[tuple[str, ...], list[TableRow]]:
    lines = path.read_bytes().decode("utf-8-sig").split("\n")
    if lines[-1] == "":
        lines.pop()
    cells = [line.removesuffix("\r").split("\t") for line in lines]
    return _with_header(path, list(enumerate(cells, start=1)))


def _read_csv(path: Path) -> tuple[tuple[str, ...], list[TableRow]]:
    text = path.read_bytes().decode("utf-8-sig")
    # The module's own limit of 131,072 characters refuses long documents.
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    numbered: list[tuple[int, list[str]]] = []
    try:
        numbered.extend((reader.line_num, cells) for cells in reader if cells)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not valid CSV: {error}. Correct that line.") from error
    return _with_header(path, numbered)


def _with_header(path: Path, lines: list[tuple[int, list[str]]]) -> tuple[tuple[str, ...], list[TableRow]]:
    if not lines:
        raise UserError(f"{path}: the file is empty. Give one whose first line names the columns.")
    (_, header), *body = lines
    if len(set(header)) < len(header):
        raise UserError(f"{path}: duplicate column names: {', '.join(header)}. Rename one.")
    for number, cells in body:
        if len(cells) != len(header):
            raise UserError(
                f"{path}, line {number}: {counted(len(cells), 'field')}, but the first line names "
                f"{counted(len(header), 'column')}: {', '.join(header)}. Correct that line."
            )
    return tuple(header), [dict(zip(header, cells, strict=True)) for _, cells in body]


def _read_jsonl(path: Path) -> tuple[tuple[str, ...], list[TableRow]]:
    rows: list[TableRow] = []
    # Not splitlines(): U+0085 and U+2028 may stand inside a JSON string.
    for number, line in enumerate(path.read_bytes().decode("utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        rows.append(parse_object(f"{path}, line {number}", line))
    return tuple(dict.fromkeys(key for row in rows for key in row)), rows


def _read_parquet(path: Path) -> tuple[tuple[str, ...], list[TableRow]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except pa.ArrowException as error:
        raise UserError(f"{path}: not a valid Parquet file. Download it again, or give another one.") from error
    return tuple(table.column_names), table.to_pylist()


_READERS: dict[str, Callable[[Path], tuple[tuple[str, ...], list[TableRow]]]] = {
    ".tsv": _read_tsv,
    ".txt": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
ENDINGS = tuple(_READERS)
_WHAT_TO_GIVE = f"Give a {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file."
