"""`toolkit grid`: resolve -> leave out what is finished -> workers run the rest -> results and the chosen rates."""

import json
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import tomli_w

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.files import atomic_write
from toolkit.core.text import counted
from toolkit.experiments import (
    Cell,
    Dropped,
    Executor,
    ExecutorKind,
    Halving,
    Score,
    halve,
    load_grid,
    results_text,
    run_cells,
    select,
)
from toolkit.experiments.display import Tally, shown
from toolkit.experiments.scheduling import Event, Failed, Finished, Observer
from toolkit.run.locks import locked_folder
from toolkit.workflows.grid_executors import open_executor
from toolkit.workflows.grid_plan import GridPlan

_RESULTS, _SELECTED, _DECLARATION = "results.jsonl", "selected.json", "grid.toml"
_MOST_NAMED = 20
_SECONDS_TO_SEE, _SECONDS_BETWEEN_LOOKS = 90.0, 0.5


def run_grid(path: Path, *, num_workers: int | None = None, executor: ExecutorKind = ExecutorKind.LOCAL) -> int:
    """Run the cells of a grid that have not finished, and return the exit code: 1 where one failed.

    Args:
        path: the grid file.
        num_workers: processes; None: one per GPU, or as many as the cores hold at the cells' number of threads.
        executor: where they run.

    Raises:
        UserError: the grid file does not fit, a finished cell was declared otherwise, another command runs the grid, or
            workers cannot be started.
    """
    plan = GridPlan(load_grid(path))
    with _locked(plan.folder):
        scores = plan.finished()
        atomic_write(plan.folder / _DECLARATION, tomli_w.dumps(plan.grid.model_dump(mode="json", exclude_none=True)))
        console().print(f"{plan.folder}: {counted(len(plan.cells), 'cell')}, {len(scores):,} done before")
        tally = Tally(plan.cells, scores, read=lambda cell: _score(plan, cell))
        # Also before: where this command is killed, no rate stands there that was chosen for fewer seeds.
        _write_results(plan, tally)
        if missing := _next_round(plan, tally):
            with open_executor(executor, plan, len(missing), num_workers) as workers, shown(tally) as display:
                _run_rounds(plan, tally, workers, observer=_Keeper(plan, display))
        _write_results(plan, tally)
    return _conclude(plan, tally)


def show_grid(path: Path) -> None:
    """Print the cells of a grid, how many are done, and what would run; nothing is written.

    Raises:
        UserError: as `run_grid`.
    """
    plan = GridPlan(load_grid(path))
    scores = plan.finished()
    screen = console()
    halving = _halving(plan, scores, ())
    groups: dict[tuple[str, str, str, float], list[Cell]] = {}
    for cell in plan.cells:
        groups.setdefault((cell.model, cell.task, cell.kind, cell.learning_rate), []).append(cell)
    num_left = 0
    for (model, task, kind, rate), cells in groups.items():
        unfinished = [cell for cell in cells if cell not in scores]
        left = [cell for cell in unfinished if halving is None or halving.keeps(cell)]
        num_left += len(left)
        runs = f"runs {', '.join(str(cell.seed) for cell in left)}" if left else "nothing to run"
        seeds = ", ".join(str(cell.seed) for cell in cells)
        num_done = len(cells) - len(unfinished)
        screen.print(f"{model} {task} ({kind}) lr {rate!r} seeds {seeds}: {num_done} of {len(cells)} done, {runs}")
    would = "would run" if halving is None else "would run at most, since search = 'halving' drops learning rates"
    screen.print(
        f"{plan.folder}: {counted(len(plan.cells), 'cell')} ({counted(len(plan.grid.model), 'model')}, "
        f"{counted(len(plan.grid.task), 'task')}), {len(scores):,} done, {num_left:,} {would}"
    )


def _run_rounds(plan: GridPlan, tally: Tally, executor: Executor, *, observer: Observer) -> None:
    while missing := _next_round(plan, tally):
        run_cells(missing, executor, job=plan.job, observer=observer)


def _next_round(plan: GridPlan, tally: Tally) -> list[Cell]:
    """Cells that are to run now; the tally leaves out those of learning rates that were dropped."""
    halving = _halving(plan, tally.scores, tally.failed)
    if halving is None:
        return [cell for cell in plan.cells if cell not in tally.scores and cell not in tally.failed]
    tally.expect(cell for cell in plan.cells if cell in tally.scores or cell in tally.failed or halving.keeps(cell))
    return list(halving.wanted)


def _halving(plan: GridPlan, scores: Mapping[Cell, Score], failed: Collection[Cell]) -> Halving | None:
    """How far successive halving is, where the grid asks for it."""
    return halve(plan.cells, scores, failed) if plan.grid.grid.search == "halving" else None


class _Keeper:
    """Writes down what happens, and passes it on to the display."""

    def __init__(self, plan: GridPlan, display: Observer) -> None:
        self._plan, self._display = plan, display

    def on_start(self, worker: int, cell: Cell) -> None:
        """Nothing is written: the worker does."""
        self._display.on_start(worker, cell)

    def on_event(self, event: Event) -> None:
        """A line of results.jsonl, or error.txt."""
        if isinstance(event, Finished):
            with (self._plan.folder / _RESULTS).open("a", encoding="utf-8") as file:
                file.write(_score(self._plan, event.cell).line())
        elif isinstance(event, Failed):
            self._plan.place(event.cell).fail(event.message)
        self._display.on_event(event)

    def on_look(self) -> None:
        """Passed on."""
        self._display.on_look()


def _score(plan: GridPlan, cell: Cell) -> Score:
    score, begun = plan.place(cell).score, time.monotonic()
    # Another machine has written it: NFS may show that a minute later.
    while score is None and time.monotonic() - begun < _SECONDS_TO_SEE:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        score = plan.place(cell).score
    if score is None:
        raise UserError(
            f"{cell} has finished on another machine, but {plan.place(cell).path} does not show its result "
            f"{_SECONDS_TO_SEE:.0f} seconds later. All machines need one file system; the same command goes on."
        )
    return score


def _write_results(plan: GridPlan, tally: Tally) -> None:
    scores, halving = tally.scores, _halving(plan, tally.scores, tally.failed)
    # A rate that was dropped may have all its seeds, from a grid that had dropped nothing.
    eligible = [cell for cell in plan.cells if halving is None or halving.keeps(cell)]
    selected = select(eligible, [score for cell, score in scores.items() if halving is None or halving.keeps(cell)])
    atomic_write(plan.folder / _SELECTED, json.dumps(selected, indent=2, ensure_ascii=False) + "\n")
    atomic_write(plan.folder / _RESULTS, results_text(scores.values()))
    if tally.num_left == len(tally.failed) == 0:
        shutil.rmtree(plan.exports, ignore_errors=True)
        shutil.rmtree(plan.locks, ignore_errors=True)


def _conclude(plan: GridPlan, tally: Tally) -> int:
    """Print the chosen rates and the failures; the exit code."""
    screen = console()
    selected = json.loads((plan.folder / _SELECTED).read_text(encoding="utf-8"))
    for model, tasks in selected.items():
        for task, entry in tasks.items():
            spread = "" if entry["test_std"] is None else f" (standard deviation {entry['test_std']:.4f})"
            screen.print(
                f"{model} {task}: test {entry['metric']} {entry['test_mean']:.4f}{spread}, "
                f"{counted(len(entry['seeds']), 'seed')}, lr {entry['learning_rate']!r}"
            )
    if halving := _halving(plan, tally.scores, tally.failed):
        _print_dropped(plan, tally, halving.dropped)
    screen.print(f"written to {plan.folder}: {_RESULTS}, {_SELECTED}, cells/")
    for cell in list(tally.failed)[:_MOST_NAMED]:
        screen.print(f"failed: {cell}, see {plan.place(cell).path / 'error.txt'}")
    if tally.failed:
        screen.print(f"{counted(len(tally.failed), 'cell')} failed. The same command tries them again.")
    return 1 if tally.failed else 0


def _print_dropped(plan: GridPlan, tally: Tally, dropped: Sequence[Dropped]) -> None:
    screen = console()
    for one in dropped[:_MOST_NAMED]:
        place = f"{' '.join(one.group)} lr {one.learning_rate!r}"
        mean = "a cell failed" if one.mean is None else f"validation {one.mean:.4f}"
        kept = "" if one.kept is None else f", the worst that stayed {one.kept:.4f}"
        screen.print(f"{place}: dropped after {counted(one.num_seeds, 'seed')}, {mean}{kept}")
    if len(dropped) > _MOST_NAMED:
        screen.print(f"and {len(dropped) - _MOST_NAMED:,} more were dropped")
    num_left_out = len(plan.cells) - len(tally.scores) - len(tally.failed)
    screen.print(f"search = 'halving' left out {num_left_out:,} of {counted(len(plan.cells), 'cell')}")


def _locked(folder: Path) -> AbstractContextManager[None]:
    return locked_folder(
        folder,
        ".lock",
        timeout=1.0,
        in_use=(
            f"another `toolkit grid` is running in {folder}. Wait for it, stop it, or set grid.dir to another folder."
        ),
        unwritable=lambda reason: f"the grid folder {folder} is not writable: {reason}. Set grid.dir to one that is.",
    )
