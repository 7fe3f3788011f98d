r"""Readers of table files (CSV, TSV, JSON, Parquet), with a specific message for each thing that can be wrong.

`.tsv` and `.txt` are split at tabs and have no quoting: a quotation mark is an ordinary character. `.csv` is quoted as
in RFC 4180. In all three every value is a string; `.json`, `.jsonl` and `.parquet` keep their types. Lines end at
`\n` (or `\r\n`) only.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from toolkit.core.errors import UserError
from toolkit.core.text import counted, json_kind

_WITH_TABS, _WITH_HEADER = (".tsv", ".txt"), (".tsv", ".txt", ".csv")
ENDINGS = (*_WITH_HEADER, ".jsonl", ".json", ".parquet")
_MOST_FIELD_CHARACTERS = 1 << 30
_CSV_PROBLEMS = {
    "unexpected end of data": "a quotation mark is never closed",
    "field larger": "a field has more than 2^30 characters",
    "new-line character": r"a line ends with \r alone",
}
_WHAT_TO_GIVE = f"Give a {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file."


def read_text(path: Path, *, what_to_give: str) -> str:
    """Text of a UTF-8 file, with or without a byte order mark; `what_to_give` ends the message if there is no file."""
    with _opened(path, what_to_give=what_to_give) as file:
        return _decoded(str(path), file)


@contextmanager
def _opened(path: Path, *, what_to_give: str) -> Iterator[BinaryIO]:
    if not path.is_file():
        raise UserError(f"{path}: {'is a directory' if path.is_dir() else 'no such file'}. {what_to_give}")
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UserError(
            f"could not read {path}: {error.strerror or error}. Check its permissions, or give another file."
        ) from error


def _decoded(place: str, file: BinaryIO) -> str:
    try:
        return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: not valid UTF-8 at byte {error.start:,}. Save it as UTF-8.") from error


def load_any_json(content: str | bytes, *, errors: str = "strict", **options: Any) -> Any:
    r"""Parse JSON with `orjson`, three times as fast, and with `json` if `orjson`, which is stricter, rejects it.

    It rejects NaN, numbers beyond a float's range, and lone surrogates (`\ud800`). Integers of more than 64 bits may
    become floats. ValueError if no value can be read, JSONDecodeError if the content is not JSON.

    Args:
        errors: the `decode` error handler for bytes that are not UTF-8.
        options: passed to `json.loads`.
    """
    import orjson  # here, as it takes a tenth of the time in which the command line must start

    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        try:
            return json.loads(content if isinstance(content, str) else content.decode(errors=errors), **options)
        except RecursionError:
            raise ValueError("lists or objects are nested too deep") from None


def load_json(content: str | bytes) -> Any:
    r"""Parse JSON and check that its strings can be tokenized and written back; errors as in `load_any_json`."""
    import orjson

    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        value = load_any_json(content)
        # Raises ValueError for half of a surrogate pair such as \ud83d\ude00, which `orjson` rejects.
        json.dumps(value, ensure_ascii=False).encode()
        return value


def parse_object(place: str, line: str | bytes) -> dict[str, Any]:
    """Parse a line as a JSON object."""
    return _object(place, _parse_line(place, line, load_json))


def _parse_line(place: str, line: str | bytes, load: Callable[[str | bytes], Any]) -> Any:
    try:
        return load(line)
    except json.JSONDecodeError as error:
        raise _not_json(place, error) from error
    except ValueError as error:
        raise UserError(f"{place}: could not be read: {error}. Correct that line.") from error


def _not_json(place: str, error: json.JSONDecodeError) -> UserError:
    return UserError(f"{place}: not valid JSON: {error.msg}, column {error.colno}. Correct that line.")


def _object(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{place}: expected a JSON object, got {json_kind(value)}. Write one object per line.")
    return value


def iterate_rows(
    place: str,
    ending: str,
    file: BinaryIO,
    *,
    load: Callable[[str | bytes], Any] = load_json,
    delimiter: str = ",",
) -> Iterator[tuple[int, Any]]:
    """Yield the rows of an open file with their line numbers; in a JSON array or Parquet file, row numbers from 1.

    A row is a list of strings (`.csv`, `.tsv`; the first one may be a header), or the JSON or Parquet value.

    Args:
        place: the file's name, for messages.
        ending: the file's format, one of `ENDINGS`.
        load: the JSON parser: `load_json` or `load_any_json`.
        delimiter: character between the columns of `.csv`.
    """
    if ending == ".parquet":
        yield from enumerate(_parquet_rows(place, file), start=1)
    elif ending == ".csv":
        records = csv_records(place, io.StringIO(_decoded(place, file), newline=""), delimiter=delimiter)
        yield from ((last, cells) for _, last, cells in records if cells)
    elif ending in _WITH_TABS:
        lines = _decoded(place, file).removesuffix("\n").split("\n")
        yield from ((number, line.removesuffix("\r").split("\t")) for number, line in enumerate(lines, start=1))
    else:
        yield from _json_rows(place, ending, _decoded(place, file), load)


def csv_records(place: str, lines: Iterable[str], *, delimiter: str) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the records of CSV, each with its first and last line number.

    Nothing is repaired: after a stray quotation mark, rows are indistinguishable from text.
    """
    # Process-wide, like the limit of 131,072 characters that it replaces, which is shorter than a novel.
    csv.field_size_limit(_MOST_FIELD_CHARACTERS)
    reader, first = csv.reader(lines, delimiter=delimiter, strict=True), 1
    try:
        for fields in reader:
            yield first, reader.line_num, fields
            first = reader.line_num + 1
    except csv.Error as error:
        problem = next((found for known, found in _CSV_PROBLEMS.items() if str(error).startswith(known)), str(error))
        raise broken_csv(place, f"in the record at line {first:,}, {problem}") from error


def broken_csv(place: str, problem: str) -> UserError:
    """Error for CSV that cannot be parsed, or parses to other rows than were written."""
    return UserError(
        f"{place} is broken: {problem}. Repair it there: inside a quoted text, a quotation mark is written twice."
    )


def _json_rows(place: str, ending: str, text: str, load: Callable[[str | bytes], Any]) -> Iterator[tuple[int, Any]]:
    if ending == ".json" or re.match(r"\s*\[", text):
        try:
            value = load(text)
        except json.JSONDecodeError as error:
            if error.msg != "Extra data":
                raise _not_json(f"{place}, line {error.lineno}", error) from error
        except ValueError as error:
            raise UserError(f"{place}: could not be read: {error}. Correct it.") from error
        else:
            yield from enumerate(value if isinstance(value, list) else [value], start=1)
            return
    # Not splitlines(): U+0085 and U+2028 may occur inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, _parse_line(f"{place}, line {number}", line, load)


def _parquet_rows(place: str, file: BinaryIO) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(file).iter_batches():
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{place}: not a valid Parquet file. Download it again, or give another one.") from error


def parquet_class_names(path: Path, column: str) -> list[str] | None:
    """Names of a column's class ids, or lists of ids, as stored by the `datasets` library; None if absent."""
    import pyarrow.parquet as pq

    metadata = json.loads((pq.read_schema(path).metadata or {}).get(b"huggingface", b"{}"))
    feature = metadata.get("info", {}).get("features", {}).get(column, {})
    feature = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
    names: list[str] | None = feature.get("names")
    return names


TableRow = dict[str, object]


@dataclass(frozen=True)
class TableFile:
    """Rows and column names of a file."""

    path: Path
    columns: tuple[str, ...]
    rows: list[TableRow]


def read_table(path: Path) -> TableFile:
    """Read a file with one of the `ENDINGS`."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        kind = "a folder" if path.is_dir() else f"a {path.suffix} file" if path.suffix else "a file without an ending"
        raise UserError(f"{path}: expected a table of examples, got {kind}. {_WHAT_TO_GIVE}")
    with _opened(path, what_to_give=_WHAT_TO_GIVE) as file:
        numbered = list(iterate_rows(str(path), ending, file))
    if ending in _WITH_HEADER:
        columns, rows = _with_header(path, numbered)
    else:
        rows = [_object(f"{path}, row {number}", row) for number, row in numbered]
        columns = tuple(dict.fromkeys(key for row in rows for key in row))
    if not rows:
        raise UserError(f"{path}: no examples in this file. Give one with a row per example.")
    return TableFile(path, columns, rows)


def _with_header(path: Path, lines: list[tuple[int, list[str]]]) -> tuple[tuple[str, ...], list[TableRow]]:
    if not any(any(cells) for _, cells in lines):
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
