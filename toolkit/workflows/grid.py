"""`toolkit grid`: resolve -> leave out what is finished -> workers run the rest -> results and the chosen rates."""

import time
from pathlib import Path

import tomli_w

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.execution import NOBODY, Event, Executor, ExecutorKind, Failed, Finished, Observer, run_work
from toolkit.experiments import Cell, Outcome, Score, load_grid
from toolkit.experiments.display import Tally, shown
from toolkit.workflows.grid_choice import (
    counted_cells,
    find_halving,
    print_outcome,
    print_start,
    remove_unchosen_models,
    select_rates,
)
from toolkit.workflows.grid_executors import open_executor
from toolkit.workflows.grid_inputs import Hub
from toolkit.workflows.grid_plan import GridPlan
from toolkit.workflows.grid_sharing import GridShare, logs_folder

_SECONDS_TO_SEE, _SECONDS_BETWEEN_LOOKS = 90.0, 0.5


def run_grid(path: Path, *, num_workers: int | None = None, executor: ExecutorKind = ExecutorKind.LOCAL) -> int:
    """Run the cells of a grid that have not finished, and return the exit code: 1 where one failed.

    Several commands may run one grid at the same time: each takes cells that are free, and ends when all have.

    Args:
        path: the grid file.
        num_workers: processes; None: one per GPU, or as many as the cores hold at the cells' number of threads.
        executor: where they run.

    Raises:
        UserError: the grid file does not fit, a finished cell was declared otherwise, a model is broken, another
            command runs another grid in the folder, or workers cannot be started.
    """
    plan = GridPlan(load_grid(path))
    with GridShare(plan) as share:
        tally = _begin(plan, share, executor)
        if missing := _next_round(plan, tally):
            plan.check_models(missing)
            plan.choose_precisions()
            items, logs = [plan.work(cell) for cell in missing], logs_folder(plan)
            with (
                open_executor(executor, items, num_workers=num_workers, logs=logs) as workers,
                shown(tally) as display,
            ):
                _run_rounds(plan, tally, workers, share=share, observer=_Keeper(plan, share, display))
        _end(plan, share, tally)
    print_outcome(plan, tally)
    return 1 if tally.failed else 0


def show_grid(path: Path) -> None:
    """Print the cells of a grid, how many are done, and what would run; nothing is fetched or written.

    Raises:
        UserError: as `run_grid`.
    """
    plan = GridPlan(load_grid(path), hub=Hub.CACHED)
    outcomes = plan.finished()
    screen = console()
    halving = find_halving(plan, Tally(plan.cells, outcomes, read=lambda cell: outcomes[cell]))
    plan.check_models(cell for cell in plan.cells if cell not in outcomes)
    groups: dict[tuple[str, str, str, float], list[Cell]] = {}
    for cell in plan.cells:
        groups.setdefault((cell.model, cell.task, cell.kind, cell.learning_rate), []).append(cell)
    num_left = 0
    for (model, task, kind, rate), cells in groups.items():
        unfinished = [cell for cell in cells if cell not in outcomes]
        left = [cell for cell in unfinished if halving is None or halving.keeps(cell)]
        num_left += len(left)
        runs = f"runs {', '.join(str(cell.seed) for cell in left)}" if left else "nothing to run"
        seeds = ", ".join(str(cell.seed) for cell in cells)
        num_done = len(cells) - len(unfinished)
        screen.print(f"{model} {task} ({kind}) lr {rate!r} seeds {seeds}: {num_done} of {len(cells)} done, {runs}")
    would = "would run" if halving is None else "would run at most, since search = 'halving' drops learning rates"
    screen.print(
        f"{plan.folder}: {counted_cells(plan)} ({counted(len(plan.grid.model), 'model')}, "
        f"{counted(len(plan.grid.task), 'task')}), {len(outcomes):,} done, {num_left:,} {would}"
    )
    if plan.unfetched:
        screen.print(f"would be fetched from the Hugging Face hub first: {', '.join(plan.unfetched)}")


def _begin(plan: GridPlan, share: GridShare, executor: ExecutorKind) -> Tally:
    """Join the commands that run the grid, and say how far it is."""
    declaration = tomli_w.dumps(plan.grid.model_dump(mode="json", exclude_none=True))
    with share.locked():
        outcomes = plan.finished()
        share.join(declaration)
        plan.folder.write_declaration(declaration)
        tally = Tally(plan.cells, outcomes, read=lambda cell: _outcome(plan, cell))
        # Also before: where this command is killed, no rate stands there that was chosen for fewer seeds.
        _write_results(plan, tally)
        print_start(plan, outcomes, share.others(), executor)
    return tally


def _end(plan: GridPlan, share: GridShare, tally: Tally) -> None:
    """Write the results, and remove what was needed while the grid ran."""
    with share.locked():
        _take_finished(plan, tally)
        _write_results(plan, tally)
        if tally.num_left == len(tally.failed) == len(share.others()) == 0:
            plan.folder.remove_temporary()


def _run_rounds(plan: GridPlan, tally: Tally, executor: Executor, *, share: GridShare, observer: Observer) -> None:
    while missing := _next_round(plan, tally):
        run_work([plan.work(cell) for cell in missing], executor, share=share, observer=observer)


def _next_round(plan: GridPlan, tally: Tally) -> list[Cell]:
    """Cells that are to run now; the tally leaves out those of learning rates that were dropped."""
    halving = find_halving(plan, tally)
    if halving is None:
        return [cell for cell in plan.cells if not tally.has_ended(cell)]
    tally.expect(cell for cell in plan.cells if tally.has_ended(cell) or halving.keeps(cell))
    return list(halving.wanted)


class _Keeper:
    """Writes down what happens, and passes it on to the display."""

    def __init__(self, plan: GridPlan, share: GridShare, display: Observer) -> None:
        self._plan, self._share, self._display = plan, share, display

    def on_start(self, worker: int, key: Cell) -> None:
        """Nothing is written: the worker does."""
        self._display.on_start(worker, key)

    def on_event(self, event: Event) -> None:
        """A line of results.jsonl, or error.txt; of a cell that another command has run, it wrote them."""
        if isinstance(event, Finished) and event.worker != NOBODY:
            outcome = _outcome(self._plan, event.key)
            if isinstance(outcome, Score):
                with self._share.locked():
                    self._plan.folder.append(outcome)
        elif isinstance(event, Failed) and event.worker != NOBODY:
            self._plan.folder.place(event.key).fail(event.message)
        self._display.on_event(event)

    def on_look(self) -> None:
        """Passed on."""
        self._display.on_look()


def _outcome(plan: GridPlan, cell: Cell) -> Outcome:
    outcome, begun = plan.outcome(cell), time.monotonic()
    # Another machine has written it: NFS may show that a minute later.
    while outcome is None and time.monotonic() - begun < _SECONDS_TO_SEE:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        outcome = plan.outcome(cell)
    if outcome is None:
        raise UserError(
            f"{cell} has finished on another machine, but {plan.folder.place(cell).path} does not show its result "
            f"{_SECONDS_TO_SEE:.0f} seconds later. All machines need one file system; the same command goes on."
        )
    return outcome


def _take_finished(plan: GridPlan, tally: Tally) -> None:
    """Cells that failed here, and that another command has finished since."""
    for cell in list(tally.failed):
        if plan.outcome(cell) is not None:
            del tally.failed[cell]
            tally.add(Finished(NOBODY, cell))


def _write_results(plan: GridPlan, tally: Tally) -> None:
    selected = select_rates(plan, tally)
    plan.folder.write_results(tally.scores.values(), selected)
    if plan.grid.grid.keep_models == "chosen":
        remove_unchosen_models(plan, tally, selected)
