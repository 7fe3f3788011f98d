"""Labelled texts, and the set of labels with their types."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.core.errors import UserError
from toolkit.finetuning.tables import Table

Label = str | int | float | bool
_TEXT, _TEXT_PAIR = "text", "text_pair"


@dataclass(frozen=True)
class Example:
    """A text, or a pair of texts, with its label."""

    text: str
    text_pair: str | None
    label: Label


class LabelSet:
    """The classes of a task, in a fixed order, with the type each had in the file.

    `1`, `1.0`, `True` and `"1"` are four labels, though Python calls the first three equal. A label that is none of
    them means the one with the same spelling, so that a format with strings alone (TSV) goes with one that has numbers.
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


def text_columns_of(table: Table) -> tuple[str, ...]:
    """The default text columns: a pair if the table has `text_pair`."""
    return (_TEXT, _TEXT_PAIR) if _TEXT_PAIR in table.columns else (_TEXT,)


def to_examples(table: Table, *, text_columns: tuple[str, ...], label_column: str) -> list[Example]:
    """The labelled texts of a table.

    Raises:
        UserError: a missing column, or a row without a usable text or label; names the place.
    """
    _check_columns(table, (*text_columns, label_column))
    return [
        _example(f"{table.path}, row {number}", row, text_columns=text_columns, label_column=label_column)
        for number, row in enumerate(table.rows, start=1)
    ]


def _check_columns(table: Table, wanted: tuple[str, ...]) -> None:
    *texts, label = wanted
    if label in texts:
        raise UserError(
            f"{table.path}: the column {label!r} is both text and label. Choose another one with --label-column."
        )
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        raise UserError(
            f"{table.path}: no column {' or '.join(map(repr, missing))}; found: {', '.join(map(repr, table.columns))}. "
            "Choose the columns with --text-columns and --label-column."
        )


def _example(place: str, row: dict[str, object], *, text_columns: tuple[str, ...], label_column: str) -> Example:
    texts: list[str] = []
    for column in text_columns:
        value = row.get(column)
        if not isinstance(value, str):
            raise UserError(f"{place}: {column!r} must be a string, found {_shown(value)}. Correct or remove the row.")
        texts.append(value)
    label = row.get(label_column)
    if not isinstance(label, (str, int, float)) or label == "":
        raise UserError(
            f"{place}: {label_column!r} must be a string, an integer, true or false, found {_shown(label)}. "
            "Correct or remove the row."
        )
    if isinstance(label, float) and not (math.isfinite(label) and label.is_integer()):
        raise UserError(
            f"{place}: {label_column!r} is {label!r}, but sequence classification needs classes. "
            "Choose another column with --label-column, or round the numbers to classes."
        )
    return Example(texts[0], texts[1] if len(texts) == 2 else None, label)


def _shown(value: object) -> str:
    return "null" if value is None else repr(value)
