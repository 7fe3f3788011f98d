"""Unusable records of a data set: one rule for all readers.

A reader raises `BadRowError` for such a record. `bad_rows = "error"` makes the run fail, "skip" leaves the record out;
records left out are counted by reason, printed, and reported in `result.json`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal, TypeVar

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.text import counted, first_few

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
_MOST_NAMED = 3
_WHAT_WAS_FOUND = re.compile(r", (?:found|got|but) |: expected ")


class Labels(Enum):
    """How readers treat rows without labels."""

    NEEDED = auto()
    """Refuse them."""
    OPTIONAL = auto()
    """Read them: they are predicted."""
    UNUSED = auto()
    """Read them, and rows with unreadable labels: nothing is scored."""


class BadRowError(UserError):
    """A record that cannot be used.

    `reason` is the same for all records with the same problem; by default the problem, without the value found.
    """

    def __init__(
        self, place: str, problem: str, remedy: str = "Correct or remove the row.", *, reason: str | None = None
    ) -> None:
        super().__init__(f"{place}: {problem}. {remedy}")
        self.place, self.reason = place, reason or _WHAT_WAS_FOUND.split(problem)[0]


@dataclass
class BadRows:
    """The policy, and the findings so far: places by file and reason."""

    policy: Literal["error", "skip"] = "error"
    found: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def each(self, file: object, items: Iterable[ItemT], read: Callable[[ItemT], ResultT]) -> list[ResultT]:
        """Return the results of `read` for the items of a file, without the unusable ones.

        Raises:
            UserError: an item is unusable and none may be left out, or no item is left.
        """
        good, is_empty = list[ResultT](), True
        for item in items:
            is_empty = False
            try:
                good.append(read(item))
            except BadRowError as error:
                if self.policy == "error":
                    raise UserError(f"{error} Or leave such rows out: --bad-rows skip.") from error
                self.note(file, f"left out: {error.reason}", error.place)
        if not good and not is_empty:
            raise UserError(f"{file}: none of its rows can be used. Correct them, or give another file.")
        return good

    def note(self, file: object, reason: str, place: str) -> None:
        """Record that a row was left out, or used in another way."""
        self.found.setdefault((str(file), reason), []).append(place.removeprefix(f"{file}, "))

    def show(self) -> None:
        """Print the findings."""
        for (file, reason), places in self.found.items():
            console().print(f"{file}: {counted(len(places), 'row')} {reason} ({first_few(places, _MOST_NAMED)})")

    def report(self) -> list[dict[str, Any]]:
        """Findings in the form of `result.json`."""
        return [
            {"file": file, "reason": reason, "count": len(places), "first": places[:_MOST_NAMED]}
            for (file, reason), places in self.found.items()
        ]


@dataclass(frozen=True, kw_only=True)
class CheckedData:
    """Base class of a family's examples.

    Attributes:
        bad: findings about rows of their files.
        is_scored: False if no test row has a label: there are predictions, but no scores.
    """

    bad: BadRows = field(default_factory=BadRows)
    is_scored: bool = True
