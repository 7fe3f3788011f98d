"""Labelled texts, and the set of labels with their types."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.core.errors import UserError
from toolkit.finetuning.bad_rows import BadRowError, BadRows, Labels
from toolkit.tables import TableFile, TableRow

Label = str | int | float | bool


@dataclass(frozen=True)
class Example:
    """A text, or a pair of texts, with its label: a class, a number, or a tuple of classes.

    `label` is None where the row has none; `row` counts the rows of its file from 1.
    """

    text: str
    text_pair: str | None
    label: Any
    row: int


def labels_of_pair(columns: Sequence[str]) -> tuple[str, ...]:
    """Labels that the `paper` protocol writes before the texts of a pair, from the training file's columns."""
    return tuple(column.replace("_", " ").capitalize() for column in columns)


def paper_text(text: str, text_pair: str | None, pair_labels: Sequence[str]) -> str:
    """A text in the format of the paper's authors; a pair becomes one string of two labelled lines."""
    return text if text_pair is None else f"{pair_labels[0]}: {text}\n{pair_labels[1]}: {text_pair}"


class LabelSet:
    """The classes of a task, in a fixed order, with the type each had in the file.

    `1`, `1.0`, `True` and `"1"` are four labels, though the first three are equal in Python. A label that is not among
    the classes means the one with the same spelling, so that strings-only files (TSV) can be mixed with others.
    """

    def __init__(self, labels: Sequence[Label]) -> None:
        distinct = {_key(label): label for label in labels}
        self.labels: tuple[Label, ...] = tuple(distinct[key] for key in sorted(distinct))
        self._index = {_key(label): index for index, label in enumerate(self.labels)}
        written = [str(label) for label in self.labels]
        self._index_of_written = {text: index for index, text in enumerate(written) if written.count(text) == 1}

    def __len__(self) -> int:
        return len(self.labels)

    def __contains__(self, label: Label) -> bool:
        return _key(label) in self._index or str(label) in self._index_of_written

    def index(self, label: Label) -> int:
        """The class number of a label."""
        exact = self._index.get(_key(label))
        return self._index_of_written[str(label)] if exact is None else exact


def _key(label: Label) -> tuple[str, Label]:
    return type(label).__name__, label


def to_examples(
    table: TableFile,
    *,
    bad: BadRows,
    text_columns: tuple[str, ...],
    label_column: str,
    read_label: Callable[[object, str], Any],
    labels: Labels = Labels.NEEDED,
) -> list[Example]:
    """The texts of a table; `read_label` gets a cell and its place, such as "train.jsonl, row 7: 'label'".

    If labels are optional, a row without one has the label None, and the file may lack the column.
    """
    _check_columns(table, text_columns, label_column, labels=labels)

    def read(numbered: tuple[int, TableRow]) -> Example:
        number, row = numbered
        place, value = f"{table.path}, row {number}", row.get(label_column)
        texts = _texts(place, row, text_columns)
        is_labelled = labels is Labels.NEEDED or value is not None
        return Example(*texts, read_label(value, f"{place}: {label_column!r}") if is_labelled else None, number)

    return bad.each(table.path, enumerate(table.rows, start=1), read)


def _check_columns(table: TableFile, texts: tuple[str, ...], label: str, *, labels: Labels) -> None:
    if label in texts:
        raise UserError(
            f"{table.path}: the column {label!r} is both text and label. Choose another one with --label-column."
        )
    missing = [name for name in (*texts, *([label] if labels is Labels.NEEDED else [])) if name not in table.columns]
    if missing:
        raise UserError(
            f"{table.path}: no column {' or '.join(map(repr, missing))}; found: {', '.join(map(repr, table.columns))}. "
            "Choose the columns with --text-columns and --label-column."
        )


def _texts(place: str, row: TableRow, columns: tuple[str, ...]) -> tuple[str, str | None]:
    texts: list[str] = []
    for column in columns:
        value = row.get(column)
        if not isinstance(value, str):
            raise BadRowError(place, f"{column!r} must be a string, found {_shown(value)}")
        texts.append(value)
    return texts[0], texts[1] if len(texts) == 2 else None


def read_class(value: object, place: str) -> Label:
    """A class, unchanged."""
    if isinstance(value, list):
        raise UserError(f"{place} is a list, {_shown(value)}, but the labels are classes. Choose --label-type set.")
    if not isinstance(value, (str, int, float)) or value == "":
        raise _bad_label(place, "a string, an integer, true or false", value)
    if isinstance(value, float) and not (math.isfinite(value) and value.is_integer()):
        raise UserError(
            f"{place} is {value!r}, but the labels are classes. Choose --label-type number, or another column with "
            "--label-column."
        )
    return value


def read_number(value: object, place: str) -> float:
    """A number, from a number or its string."""
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _bad_label(place, "a finite number", value)
    return number


def read_set(value: object, place: str, *, separator: str) -> tuple[Label, ...]:
    """Labels from a list, or from a string split at `separator`, without blanks around each."""
    if isinstance(value, str):
        return tuple(dict.fromkeys(name for part in value.split(separator) if (name := part.strip())))
    if not isinstance(value, list) or not all(isinstance(label, (str, int)) and label != "" for label in value):
        expected = f"a list of strings or integers, or a string of labels separated by {separator!r}"
        raise _bad_label(place, expected, value)
    return tuple(dict.fromkeys(value))


def _bad_label(place: str, expected: str, value: object) -> BadRowError:
    row, _, column = place.rpartition(": ")
    return BadRowError(row, f"{column} must be {expected}, found {_shown(value)}")


def _shown(value: object) -> str:
    return "null" if value is None else repr(value)
