"""Display of a grid that runs: a live table on a terminal, a line per cell elsewhere."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from toolkit.core.console import console
from toolkit.core.text import duration
from toolkit.execution.work import Event, Failed, Finished, Lost, Observer
from toolkit.experiments.grid.cells import Cell, Diverged, Outcome, Score

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_HOUR = 3600.0


class GridTally:
    """Counts of a grid that runs, and the best validation score of each task so far.

    `settle` writes down that a cell has finished or failed, and returns the outcome of a finished one.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        outcomes: Mapping[Cell, Outcome],
        *,
        settle: Callable[[Finished | Failed], Outcome | None] = lambda event: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scores, self.diverged = dict[Cell, Score](), dict[Cell, Diverged]()
        self.failed, self.running = dict[Cell, str](), dict[int, Cell]()
        self.totals = Counter(cell.task for cell in cells)
        self.best: dict[str, Score] = {}
        for cell in sorted(outcomes):
            self._keep(outcomes[cell])
        self._settle, self._clock, self._begun, self._num_before = settle, clock, clock(), len(outcomes)

    def begin(self, worker: int, cell: Cell) -> None:
        """A worker has begun a cell."""
        self.running[worker] = cell

    def add(self, event: Event) -> None:
        """A cell has finished, has failed, or has lost its worker."""
        self.running.pop(event.worker, None)
        if isinstance(event, Lost):
            return
        if (outcome := self._settle(event)) is not None:
            self._keep(outcome)
        elif isinstance(event, Failed):
            self.failed[event.key] = event.message

    def _keep(self, outcome: Outcome) -> None:
        cell = outcome.cell
        if isinstance(outcome, Diverged):
            self.diverged[cell] = outcome
            return
        self.scores[cell] = outcome
        best = self.best.get(cell.task)
        if best is None or _main(outcome) > _main(best):
            self.best[cell.task] = outcome

    @property
    def num_done(self) -> int:
        """Cells that have finished, with scores or diverged."""
        return len(self.scores) + len(self.diverged)

    @property
    def num_left(self) -> int:
        """Cells that have neither finished nor failed."""
        return self.totals.total() - self.num_done - len(self.failed)

    def has_ended(self, cell: Cell) -> bool:
        """True once a cell has finished or failed."""
        return cell in self.scores or cell in self.diverged or cell in self.failed

    def summary(self) -> str:
        """'12 of 96 cells done, 2 running, 1 failed, 310 cells/h, 0:16:00 left'."""
        parts = [f"{self.num_done:,} of {self.totals.total():,} cells done", f"{len(self.running):,} running"]
        parts += [f"{len(self.diverged):,} diverged"] if self.diverged else []
        parts += [f"{len(self.failed):,} failed"] if self.failed else []
        # Since the start of this command.
        ended = self.num_done - self._num_before + len(self.failed)
        if rate := ended / max(self._clock() - self._begun, 1e-9) * _HOUR:
            parts += [f"{rate:,.0f} cells/h", f"{duration(self.num_left / rate * _HOUR)} left"]
        return ", ".join(parts)


@contextmanager
def shown(tally: GridTally) -> Iterator[Observer]:
    """A display that keeps the tally, for the block."""
    screen = console()
    if not screen.is_terminal:
        yield Display(tally, screen.print)
        return
    from rich.live import Live

    with Live(console=screen, refresh_per_second=4) as live:
        yield Display(tally, screen.print, live)


class Display:
    """A line per cell that ended, with how far the grid is; or a live table of tasks below lines of what went wrong."""

    def __init__(self, tally: GridTally, say: Callable[[str], None], live: "Live | None" = None) -> None:
        self._tally, self._say, self._live = tally, say, live
        self._messages, self._ended = set[tuple[tuple[str, str], str]](), list[str]()

    def on_start(self, worker: int, key: Cell) -> None:
        """Count the cell as running."""
        self._tally.begin(worker, key)

    def on_event(self, event: Event) -> None:
        """Keep a line until the worker has its next cell, so that the counts are right."""
        self._tally.add(event)
        if self._live is None or not isinstance(event, Finished):
            self._ended.append(self._described(event))

    def on_look(self) -> None:
        """Show what has ended since the last time."""
        for line in self._ended:
            self._say(line if self._live is not None else f"{line}; {self._tally.summary()}")
        self._ended.clear()
        if self._live is not None:
            self._live.update(tally_table(self._tally))

    def _described(self, event: Event) -> str:
        if isinstance(event, Lost):
            return f"{event.key}: its worker ended by {event.reason}; it is run again"
        if isinstance(event, Finished):
            score = self._tally.scores.get(event.key)
            if score is None:
                return f"{event.key} diverged: {self._tally.diverged[event.key].message}"
            is_best = self._tally.best[score.cell.task] is score
            return f"{event.key}: {_score_text(score)}" + f", best of {score.cell.task} so far" * is_best
        # A broken file fails all cells of its task.
        key = event.key.group, event.message
        # The traceback of a bug is in error.txt.
        text = event.message.partition("\nTraceback")[0]
        message = "failed as the one before" if key in self._messages else f"failed: {text}"
        self._messages.add(key)
        return f"{event.key} {message}"


def tally_table(tally: GridTally) -> "Table":
    """A row per task: done (diverged ones too), running, diverged, failed and the best score; below it the summary."""
    from rich.table import Table

    table = Table("task", caption=tally.summary(), caption_justify="left")
    for name in ("done", "running", "diverged", "failed"):
        table.add_column(name, justify="right")
    table.add_column("best so far", overflow="fold")
    scored, diverged, failed = (
        Counter(cell.task for cell in cells) for cells in (tally.scores, tally.diverged, tally.failed)
    )
    running = Counter(cell.task for cell in tally.running.values())
    for task, total in tally.totals.items():
        best = tally.best.get(task)
        rate = f", lr {best.cell.learning_rate!r}" if best and best.cell.learning_rate else ""
        about = "" if best is None else f"{_score_text(best)} ({best.cell.model}{rate})"
        counts = (running[task], diverged[task], failed[task])
        done = scored[task] + diverged[task]
        table.add_row(task, f"{done:,}/{total:,}", *(f"{count:,}" for count in counts), about)
    return table


def _main(score: Score) -> float:
    """Score that a task's best is chosen by: validation, or test where there is none."""
    return (score.validation or score.test)[score.metric]


def _score_text(score: Score) -> str:
    split = "validation" if score.validation else "test"
    return f"{split} {score.metric} {_main(score):.4f}"
