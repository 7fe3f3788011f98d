"""Records of a data set that cannot be used: one rule for all readers.

A reader raises `BadRowError` for a record. `bad_rows = "error"` makes that an error of the run, "skip" leaves the
record out; what was left out is counted by reason, printed, and in `result.json`.
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
    """Read them, and rows whose labels cannot be read: nothing is scored."""


class BadRowError(UserError):
    """A record that cannot be used.

    `reason` is the same for all records that lack the same; by default the problem, without what was found.
    """

    def __init__(
        self, place: str, problem: str, remedy: str = "Correct or remove the row.", *, reason: str | None = None
    ) -> None:
        super().__init__(f"{place}: {problem}. {remedy}")
        self.place, self.reason = place, reason or _WHAT_WAS_FOUND.split(problem)[0]


@dataclass
class BadRows:
    """The rule, and what has been found so far: places by file and reason."""

    policy: Literal["error", "skip"] = "error"
    found: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def each(self, file: object, items: Iterable[ItemT], read: Callable[[ItemT], ResultT]) -> list[ResultT]:
        """What `read` makes of each item of a file, without those that cannot be used.

        Raises:
            UserError: an item cannot be used and none may be left out, or no item is left.
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
        """Keep that a record was left out, or used in another way."""
        self.found.setdefault((str(file), reason), []).append(place.removeprefix(f"{file}, "))

    def show(self) -> None:
        """Print what was found."""
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
    """What the examples of every family of ours have.

    Attributes:
        bad: what was found in their files.
        is_scored: False where no test row has a label: there are predictions then, and no scores.
    """

    bad: BadRows = field(default_factory=BadRows)
    is_scored: bool = True
