"""First difference between two tokenizer backends: the text, and both backends' ids around the first mismatch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint32]
Lengths = npt.NDArray[np.int64]

_SHOWN_CHARACTERS = 60
_SHOWN_IDS = 8


@dataclass(frozen=True)
class Difference:
    """Two unequal encodings of one text.

    Attributes:
        text: the text, whole.
        token: number of the first token that differs, from 0.
        expected: ids of the reference from there on, at most 8.
        found: ids of the other backend from there on, at most 8.
        note: what else is known, for example how the backend broke.
    """

    text: str
    token: int
    expected: tuple[int, ...]
    found: tuple[int, ...]
    note: str = ""

    def __str__(self) -> str:
        shown = repr(self.text[:_SHOWN_CHARACTERS]) + ("..." if len(self.text) > _SHOWN_CHARACTERS else "")
        note = f" ({self.note})" if self.note else ""
        return (
            f"token {self.token:,} of a text of {len(self.text):,} characters that starts {shown}: "
            f"expected {list(self.expected)}, found {list(self.found)}{note}"
        )


def first_difference(
    texts: Sequence[str], expected: tuple[Ids, Lengths], found: tuple[Ids, Lengths]
) -> Difference | None:
    """Compare two encodings of the same texts, each as ids one after the other and the number of ids of each text."""
    if np.array_equal(expected[1], found[1]) and np.array_equal(expected[0], found[0]):
        return None
    starts = [np.concatenate([[0], np.cumsum(lengths)]) for _, lengths in (expected, found)]
    for number, text in enumerate(texts):
        ours, theirs = (
            ids[start[number] : start[number + 1]] for (ids, _), start in zip((expected, found), starts, strict=True)
        )
        if not np.array_equal(ours, theirs):
            shorter = min(ours.size, theirs.size)
            differing = np.flatnonzero(ours[:shorter] != theirs[:shorter])
            token = int(differing[0]) if differing.size else shorter
            stop = token + _SHOWN_IDS
            return Difference(text, token, tuple(ours[token:stop].tolist()), tuple(theirs[token:stop].tolist()))
    return None
