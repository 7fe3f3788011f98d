"""Signs that a stray quotation mark in a CSV file has made one text of many rows.

Such a text has as many commas in each line as a row of the file. Prose has them now and then, so more is asked for:
either numbers that count on from line to line, or many lines that are like the rows of the file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

_FEWEST_LINES, _MOST_LINES, _SHARE_OF_ROWS = 10, 100, 0.9
_FEWEST_ROWS, _SELDOM = 10, 0.05


@dataclass(frozen=True)
class ColumnHabits:
    """Shares of a file's rows that have an empty field in a column, and one that begins with a blank."""

    empty: float = 0.0
    blank: float = 0.0

    @classmethod
    def of_columns(cls, rows: Sequence[Sequence[str]], num_columns: int) -> "list[ColumnHabits]":
        """The habits of each column; none where there are too few rows to show any."""
        if len(rows) < _FEWEST_ROWS:
            return [cls()] * num_columns
        columns = [[fields[number] for fields in rows] for number in range(num_columns)]
        return [cls(_share_empty(column), _share_blank(column)) for column in columns]

    def allow(self, field: str) -> bool:
        """True if a field is not emptier than the file's."""
        return (bool(field) or self.empty >= _SELDOM) and (not field[:1].isspace() or self.blank >= _SELDOM)

    def allow_all(self, fields: Sequence[str]) -> bool:
        """True if empty fields and blanks are about as many as in the file: lines of a poem all end in a comma."""
        return _share_empty(fields) <= 2 * self.empty + 0.1 and _share_blank(fields) <= 2 * self.blank + 0.1


def holds_rows(fields: Sequence[str], habits: Sequence[ColumnHabits]) -> bool:
    """Look for a field that is like rows of the same file, which a file of one column cannot show."""
    numbers = [number for number, field in enumerate(fields) if "\n" in field] if len(fields) > 1 else []
    return any(_count_on(number, fields) or _are_alike(number, fields, habits) for number in numbers)


def split_lines(number: int, fields: Sequence[str]) -> Iterator[list[str]]:
    """The lines of a record whose field `number` has several, as if quotation marks meant nothing."""
    first, *middle, last = (line.removesuffix("\r").split(",") for line in fields[number].split("\n"))
    yield [*fields[:number], *first]
    yield from middle
    yield [*last, *fields[number + 1 :]]


def _count_on(number: int, fields: Sequence[str]) -> bool:
    """True if all lines are rows of which one column counts on by one."""
    if fields[number].count("\n") > _MOST_LINES:
        return False
    lines = list(split_lines(number, fields))
    # A row among them may have a comma in quotation marks.
    if any(len(line) != len(fields) and not (len(line) > len(fields) and '"' in "".join(line)) for line in lines):
        return False
    return any(
        column[0].isdecimal() and all(map(str.__eq__, column, map(str, count(int(column[0])))))
        for column in islice(zip(*lines, strict=False), len(fields))
    )


def _are_alike(number: int, fields: Sequence[str], habits: Sequence[ColumnHabits]) -> bool:
    """True if nine of ten lines have as many fields as the file has, and a number wherever the record has one.

    The last lines are looked at, since whatever is swallowed ends at the mark that closes the text.
    """
    lines = fields[number].rsplit("\n", _MOST_LINES + 1)[1:-1]
    rows = (line.removesuffix("\r").split(",") for line in lines)
    alike = [row for row in rows if len(row) == len(fields) and _is_like(row, fields, habits, besides=number)]
    if len(lines) < _FEWEST_LINES or len(alike) < _SHARE_OF_ROWS * len(lines):
        return False
    return all(habit.allow_all(column) for habit, column in zip(habits, zip(*alike, strict=True), strict=True))


def _is_like(row: Sequence[str], fields: Sequence[str], habits: Sequence[ColumnHabits], *, besides: int) -> bool:
    columns = enumerate(zip(row, fields, habits, strict=True))
    return all(
        habit.allow(its) and (number == besides or not its or _is_number(its) >= _is_number(own))
        for number, (its, own, habit) in columns
    )


def _share_empty(fields: Sequence[str]) -> float:
    return sum(not field for field in fields) / len(fields)


def _share_blank(fields: Sequence[str]) -> float:
    return sum(field[:1].isspace() for field in fields) / len(fields)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
