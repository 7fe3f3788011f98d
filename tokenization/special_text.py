"""Find the strings of special tokens inside ordinary text."""

import re
from collections.abc import Iterable, Sequence


class SpecialTextCounter:
    """Counts how often special-token strings (`<|endoftext|>`...) stand in texts; the longest wins where two start.

    Nearly all text holds none, so a text is first searched for the few openings of these strings (`<|`, `[P`...),
    which runs at memory speed.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        longest_first = sorted(set(strings), key=lambda string: (-len(string), string))
        self._openings: Sequence[str] = sorted({string[:2] for string in longest_first})
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def is_in(self, text: str) -> bool:
        """Whether one of the strings stands in a text."""
        return self._pattern is not None and self._may_be_in(text) and self._pattern.search(text) is not None

    def count(self, texts: Iterable[str]) -> int:
        """Occurrences in all texts together."""
        if self._pattern is None:
            return 0
        return sum(sum(1 for _ in self._pattern.finditer(text)) for text in texts if self._may_be_in(text))

    def _may_be_in(self, text: str) -> bool:
        for opening in self._openings:  # noqa: SIM110 - a generator takes longer than most searches
            if opening in text:
                return True
        return False
