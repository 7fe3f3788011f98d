"""State of a grid, read from its files: counts, the best validation score of each task, and a line per ended cell."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.experiments.grid.cells import Cell, Diverged, Outcome, Score
from toolkit.experiments.grid.folder import GridFolder
from toolkit.work.claims import Claims, Item, Job
from toolkit.work.commands import commands_at, work_folder
from toolkit.work.show import Line, Pace

if TYPE_CHECKING:
    from rich.table import Table


class GridView:
    """Cells that have ended: those in `outcomes`, and those of `job` since then."""

    def __init__(self, folder: GridFolder, cells: Sequence[Cell], outcomes: Mapping[Cell, Outcome], job: Job) -> None:
        self.scores, self.diverged, self.failed = dict[Cell, Score](), dict[Cell, Diverged](), dict[Cell, str]()
        self.totals, self.best = Counter(cell.task for cell in cells), dict[str, Score]()
        self.running = Counter[str]()
        self._folder, self._claims, self._work = folder, Claims(job), job.folder
        self._cells = {str(cell): cell for cell in cells}
        for cell in sorted(outcomes):
            self.keep(outcomes[cell])
        self._told, self._new = set[tuple[tuple[str, str], str]](), list[Cell]()
        self.look()
        self.pace = Pace(self.num_done + len(self.failed))

    def keep(self, outcome: Outcome) -> None:
        """Count an outcome."""
        cell = outcome.cell
        self.failed.pop(cell, None)
        if isinstance(outcome, Diverged):
            self.diverged[cell] = outcome
            return
        self.scores[cell] = outcome
        best = self.best.get(cell.task)
        # The test score chooses nothing.
        if outcome.validation and (best is None or _main(outcome) > _main(best)):
            self.best[cell.task] = outcome

    def look(self) -> None:
        """Read the cells that ended since the last look; a result still hidden by a file system cache is read later."""
        claims = self._claims
        claims.look()
        self.running = Counter(self._cells[key].task for key in claims.running)
        failed = {self._cells[key]: message for key, message in claims.failed.items()}
        self._new += [cell for cell in failed if cell not in self.failed]
        self.failed = failed
        done = {self._cells[key] for key in claims.done}
        for cell in sorted(done - self.scores.keys() - self.diverged.keys()):
            if (outcome := self._folder.place(cell).outcome) is not None:
                self.keep(outcome)
                self._new.append(cell)

    @property
    def num_done(self) -> int:
        """Number of cells that have finished, with scores or diverged."""
        return len(self.scores) + len(self.diverged)

    @property
    def num_left(self) -> int:
        """Number of cells that have neither finished nor failed."""
        return self.totals.total() - self.num_done - len(self.failed)

    def is_over(self) -> bool:
        """True if no cell is left, or no command runs them."""
        return not self.num_left or not commands_at(self._work)

    def news(self) -> Iterator[Line]:
        """A line for each cell that ended, with the progress of the grid."""
        summary = self.summary()
        while self._new:
            cell = self._new.pop(0)
            yield Line(f"{self._described(cell)}; {summary}", is_news=cell not in self.scores)

    def _described(self, cell: Cell) -> str:
        if (score := self.scores.get(cell)) is not None:
            split, is_best = "validation" if score.validation else "test", self.best.get(cell.task) is score
            best = f", best of {cell.task} so far" if is_best else ""
            return f"{cell}: {split} {score.metric} {_main(score):.4f}{best}"
        if cell in self.diverged:
            return f"{cell} diverged: {self.diverged[cell].message}"
        # A broken file fails all cells of its task.
        key = cell.group, self.failed[cell]
        # The traceback of a bug is in error.txt.
        text = self.failed[cell].partition("\nTraceback")[0]
        message = "failed as the one before" if key in self._told else f"failed: {text}"
        self._told.add(key)
        return f"{cell} {message}"

    def summary(self) -> str:
        """'12 of 96 cells done, 2 running, 1 failed, 310 cells/h, 0:16:00 left'."""
        parts = [f"{self.num_done:,} of {self.totals.total():,} cells done", f"{self.running.total():,} running"]
        troubles = {"diverged": len(self.diverged), "failed": len(self.failed)}
        parts += [f"{number:,} {name}" for name, number in troubles.items() if number]
        parts.append(self.pace.text(self.num_done + len(self.failed), self.num_left, "cells"))
        return ", ".join(filter(None, parts))

    def picture(self) -> "Table":
        """A row per task: its cells by state, and the best validation score if any has one; totals below."""
        from rich.table import Table

        rest = "; no process is running it; the same `toolkit grid` continues" * (self.num_left > 0 and self.is_over())
        table = Table("task", "cells", caption=self.summary() + rest, caption_justify="left")
        if self.best:
            table.add_column("best validation score", overflow="fold")
        scored, diverged, failed = (
            Counter(cell.task for cell in cells) for cells in (self.scores, self.diverged, self.failed)
        )
        for task, total in self.totals.items():
            states = {"running": self.running[task], "diverged": diverged[task], "failed": failed[task]}
            counts = [f"{scored[task] + diverged[task]:,}/{total:,} done"]
            counts += [f"{count:,} {state}" for state, count in states.items() if count]
            best = self.best.get(task)
            rate = f", lr {best.cell.learning_rate!r}" if best and best.cell.learning_rate else ""
            about = [f"{best.metric} {_main(best):.4f} ({best.cell.model}{rate})"] if best else []
            table.add_row(task, ", ".join(counts), *about)
        return table


def grid_at(path: Path) -> GridView:
    """View of a grid in a folder that other commands run."""
    folder = GridFolder(path)
    cells = folder.read_declaration().cells
    outcomes = {cell: outcome for cell in cells if (outcome := folder.place(cell).outcome) is not None}
    return GridView(folder, cells, outcomes, Job(work_folder(path), [Item(str(cell)) for cell in cells]))


def _main(score: Score) -> float:
    """Main metric on the validation split, or on the test split if there are no validation scores."""
    return (score.validation or score.test)[score.metric]
