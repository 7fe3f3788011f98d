"""The one live view of work: drawn on a terminal, lines elsewhere; by the working command, or from outside."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from toolkit.core.console import console
from toolkit.core.text import duration

if TYPE_CHECKING:
    from rich.console import RenderableType

_HOUR = 3600.0
_SECONDS_BETWEEN_PICTURES = 2.0


class Line(NamedTuple):
    """A line of output of a view."""

    text: str
    is_news: bool = True
    """Whether it stays above the picture on a terminal; otherwise the picture shows it as well."""


class View(Protocol):
    """State of work, as its files show it."""

    def look(self) -> None:
        """Read what is new."""

    def news(self) -> Iterable[Line]:
        """Lines about what the last look found."""

    def picture(self) -> "RenderableType":
        """The whole state at the last look."""

    def is_over(self) -> bool:
        """True if nothing is left to do, or no process works on it."""


@contextmanager
def shown(view: View) -> Iterator[Callable[[Sequence[str]], None]]:
    """Yield a function that shows the caller's own lines, then the view's output."""
    from rich.live import Live

    screen = console()
    live = Live(console=screen, auto_refresh=False, vertical_overflow="visible") if screen.is_terminal else None

    def look(lines: Sequence[str]) -> None:
        view.look()
        news = [line.text for line in view.news() if live is None or line.is_news]
        for line in (*lines, *news):
            screen.print(line)
        if live is not None:
            live.update(view.picture(), refresh=True)

    with live or nullcontext():
        yield look


def watch(view: View) -> None:
    """Show a view from outside until it is over, or Ctrl-C."""
    with suppress(KeyboardInterrupt), shown(view) as look:
        look(())
        while not view.is_over():
            time.sleep(_SECONDS_BETWEEN_PICTURES)
            look(())
    if not console().is_terminal:
        console().print(view.picture())


class Pace:
    """Rate at which parts are done, measured from now on."""

    def __init__(self, num_before: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_before, self._clock, self._begun = num_before, clock, clock()

    def text(self, num_ended: int, num_left: int, unit: str) -> str:
        """Rate and time left, such as '310 cells/h, 0:16:00 left'; empty until a part has ended."""
        rate = (num_ended - self._num_before) / max(self._clock() - self._begun, 1e-9) * _HOUR
        return f"{rate:,.0f} {unit}/h, {duration(num_left / rate * _HOUR)} left" if rate else ""
