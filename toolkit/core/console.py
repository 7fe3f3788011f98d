"""Console output: one console, and progress as a bar on a terminal and as plain lines elsewhere."""

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.table import Table
    from rich.text import Text

from toolkit.core.text import terminal_safe

_SECONDS_BETWEEN_LINES = 10.0
_LOG_COLUMNS = 1000
_TRAILING_BLANKS = re.compile(r" +(?=\n)")


def console() -> "Console":
    """The console on standard output; made on demand, since importing rich costs start-up time."""
    from rich.console import Console

    class _SafeConsole(Console):
        def render_str(self, text: str, **options: Any) -> "Text":
            """Make every printed string terminal-safe, in tables too: file names may contain anything."""
            return super().render_str(terminal_safe(text), **options)

    # No markup: paths and tokens contain square brackets.
    plain: dict[str, Any] = {"highlight": False, "soft_wrap": True, "markup": False, "emoji": False}
    if sys.stdout.isatty():
        return _SafeConsole(**plain)
    # In a log, a table row is one line, without trailing padding.
    width = None if "COLUMNS" in os.environ else _LOG_COLUMNS
    return _SafeConsole(**plain, width=width, file=cast("IO[str]", _WithoutTrailingBlanks(sys.stdout)))


def survive_lost_output() -> None:
    """Keep this process running if its standard output or error is lost: a closed terminal or pipe, a full disk.
    Output that cannot be written is dropped, and the loss is reported once on standard error.
    """
    sys.stdout = cast(TextIO, _Expendable(sys.stdout, "standard output"))
    sys.stderr = cast(TextIO, _Expendable(sys.stderr, "standard error"))


class _Expendable:
    """A standard stream that never raises OSError; one from Python's flush at exit would change the exit code."""

    def __init__(self, stream: TextIO | None, name: str) -> None:
        # None: it was closed when Python started. The file stays open for the life of the process.
        self._stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115
        self._name, self._is_told = name, False

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                print(f"{self._name} is lost ({error.strerror}); the run continues", file=sys.stderr, flush=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _WithoutTrailingBlanks:
    """A stream that strips trailing blanks from lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_TRAILING_BLANKS.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def facts() -> "Table":
    """An empty table with two columns, names and values; long values wrap. Fill it with `add_row(name, value)`."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def columns(title: str, *names: str) -> "Table":
    """An empty table with named columns; long values wrap."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left", title_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and warnings off the screen inside the block."""
    from logging import ERROR

    from transformers.utils import logging

    # Any: its functions have no annotations.
    settings: Any = logging
    level, had_bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity(ERROR)
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(level)
        if had_bars:
            settings.enable_progress_bar()


class Progress(Protocol):
    """A running count of work done."""

    def update(self, completed: float, note: str = "") -> None:
        """Report how much is done so far, and extra figures (a rate, a loss)."""

    def say(self, text: str) -> None:
        """Print a line that stays."""


class _Lines:
    """Plain lines, for logs: at most one every ten seconds."""

    def __init__(self, label: str, total: float | None, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._start = self._last = time.monotonic()

    def update(self, completed: float, note: str = "") -> None:
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        rate = completed / max(now - self._start, 1e-9)
        of_total, left = "", ""
        if self._total:
            of_total = f"/{self._total:,.0f}"
            left = f", {max(self._total - completed, 0) / max(rate, 1e-9):,.0f} s left"
        suffix = f", {note}" if note else ""
        text = f"{self._label}: {completed:,.0f}{of_total} {self._unit}, {rate:,.1f} {self._unit}/s{left}{suffix}"
        self.say(text)

    def say(self, text: str) -> None:
        print(terminal_safe(text), flush=True)


class _Bar:
    def __init__(self, bar: "RichProgress", task: "TaskID") -> None:
        self._bar, self._task = bar, task

    def update(self, completed: float, note: str = "") -> None:
        self._bar.update(self._task, completed=completed, note=note)

    def say(self, text: str) -> None:
        self._bar.console.print(text)


@contextmanager
def progress(label: str, *, total: float | None, unit: str) -> Iterator[Progress]:
    """Show progress with rate and time left. `total` is in `unit`s; None if unknown."""
    screen = console()
    if not screen.is_terminal:
        yield _Lines(label, total, unit)
        return
    from rich import progress as rich_progress

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.TaskProgressColumn(show_speed=True),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[note]}"),
    )
    with rich_progress.Progress(*columns, console=screen) as bar:
        yield _Bar(bar, bar.add_task(f"{label} ({unit})", total=total, note=""))
