"""Errors on only one rank: kept until the ranks next exchange something, then raised by all of them.

A rank that raised at once would leave the others waiting in a collective, which then ends for them with a broken
connection, another traceback and another exit code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from toolkit.core.errors import NonFiniteError
from toolkit.engine.ranks import Ranks
from toolkit.engine.step import NonFiniteStep


class RankErrors:
    """The first error of this rank that the other ranks do not know about yet."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._error: Exception | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep an error of the body instead of raising it; for work that this rank does without the others."""
        try:
            yield
        except Exception as error:
            self._error = self._error or error

    @property
    def has_one(self) -> bool:
        """Return whether this rank keeps an error."""
        return self._error is not None

    def should_stop(self, is_requested: Callable[[], bool] = lambda: False) -> bool:
        """Return whether any rank is asked to stop, or keeps an error; collective.

        Such an error leaves the weights good: the run ends as if stopped, and raises it once it has saved.
        """
        return self._ranks.sum_counts(int(self.has_one or is_requested())) != (0,)

    def raise_agreed(self) -> None:
        """Raise the error of any rank on every rank; collective. Nothing happens if there is none."""
        with self._ranks.together():
            if self._error is not None:
                raise self._error

    def name_rows(self, rows: str) -> str:
        """Rows of a step by rank; collective: each copy of the model names its own, on the rank that has the loss."""
        ranks = self._ranks
        told = f"rank {ranks.rank}, {rows}" if rows and ranks.topology.has_loss else ""
        return "; ".join(rows for rows in ranks.gather(told) if rows)

    def raise_non_finite(self, error: NonFiniteStep, *, step: int, rows: str) -> NoReturn:
        """Raise, on every rank, the error that ended a step, or one that was kept before it; collective."""
        self.raise_agreed()
        raise NonFiniteError.at_step(
            step,
            f"{error.what} is not finite. Rows of the step: {self.name_rows(rows)}.\n"
            "Nothing of this step was saved; the last checkpoint is intact. Try a smaller lr.peak, a longer warm-up, "
            'or precision="fp32".',
        ) from error
