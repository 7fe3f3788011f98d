"""`toolkit grid`: resolve -> leave out what is finished -> workers run the rest -> results and the chosen rates."""

import shutil
import time
from collections.abc import Collection
from pathlib import Path

import tomli_w

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.files import atomic_write
from toolkit.core.text import counted
from toolkit.execution.scheduling import run_work
from toolkit.execution.work import NOBODY, ExecutorKind, Failed, Finished
from toolkit.experiments.grid.cells import Cell, Outcome, Score
from toolkit.experiments.grid.choice import (
    counted_cells,
    print_outcome,
    print_start,
    remove_unchosen_models,
    select_rates,
)
from toolkit.experiments.grid.declaration import Grid, load_grid
from toolkit.experiments.grid.display import GridTally, shown
from toolkit.experiments.grid.executors import open_executor, submit_commands
from toolkit.experiments.grid.inputs import HubAccess
from toolkit.experiments.grid.plan import GridPlan
from toolkit.experiments.grid.sharing import GridShare, logs_folder

_SECONDS_TO_SEE, _SECONDS_BETWEEN_LOOKS = 90.0, 0.5


def run_grid(
    source: Path | Grid, *, num_workers: int | None = None, executor: ExecutorKind = ExecutorKind.LOCAL
) -> int:
    """Run the cells of a grid that have not finished, and return the exit code: 1 where one failed; 0 also where Slurm
    has jobs that do.

    Several commands may run one grid at the same time: each takes cells that are free, and ends when all have.

    Without a number of workers there is one per GPU, or as many as the cores hold at the cells' number of threads.
    """
    plan = GridPlan(source if isinstance(source, Grid) else load_grid(source))
    with GridShare(plan) as share:
        tally = _begin(plan, share, executor)
        if missing := [cell for cell in plan.cells if not tally.has_ended(cell)]:
            plan.check_models(missing)
            if executor is ExecutorKind.SLURM:
                return _submit(plan, share, most=min(num_workers or 1, len({*map(plan.training, missing)})))
            plan.choose_precisions()
            items, logs = [plan.work(cell) for cell in missing], logs_folder(plan)
            opened = open_executor(executor, items, num_workers=num_workers, logs=logs)
            with opened as workers, shown(tally) as display:
                run_work(items, workers, share=share, observer=display)
        _end(plan, share, tally)
    print_outcome(plan, tally)
    return 1 if tally.failed else 0


def submit_grid(grid: Grid, *, behind: Collection[str]) -> None:
    """Submit a grid whose models are still to be made, as a job of Slurm behind those with these ids."""
    plan = GridPlan(grid.model_copy(update={"model": ()}), hub=HubAccess.CACHED)
    with GridShare(plan) as share, share.locked():
        _declare(grid, plan, share)
        submit_commands(plan.folder, grid.slurm, most=1, behind=behind)


def show_grid(path: Path) -> None:
    """Print the cells of a grid, how many are done, and what would run; nothing is fetched or written."""
    plan = GridPlan(load_grid(path), hub=HubAccess.CACHED)
    outcomes = plan.finished()
    screen = console()
    plan.check_models(cell for cell in plan.cells if cell not in outcomes)
    groups: dict[tuple[str, str, str, float], list[Cell]] = {}
    for cell in plan.cells:
        groups.setdefault((cell.model, cell.task, cell.kind, cell.learning_rate), []).append(cell)
    num_left = 0
    for (model, task, kind, rate), cells in groups.items():
        unfinished = [cell for cell in cells if cell not in outcomes]
        num_left += len(unfinished)
        all_seeds, left = (", ".join(str(cell.seed) for cell in some) for some in (cells, unfinished))
        num_done, trained = len(cells) - len(unfinished), f" lr {rate!r} seeds {all_seeds}" if rate else ""
        runs = "nothing to run" if not unfinished else f"runs {left}" if rate else "runs"
        screen.print(f"{model} {task} ({kind}){trained}: {num_done} of {len(cells)} done, {runs}")
    screen.print(
        f"{plan.folder}: {counted_cells(plan)} ({counted(len(plan.grid.model), 'model')}, "
        f"{counted(len(plan.grid.task), 'task')}), {len(outcomes):,} done, {num_left:,} would run"
    )
    if plan.unfetched:
        screen.print(f"would be fetched from the Hugging Face hub first: {', '.join(plan.unfetched)}")


def _submit(plan: GridPlan, share: GridShare, *, most: int) -> int:
    with share.locked():
        submit_commands(plan.folder, plan.grid.slurm, most=most)
    return 0


def _begin(plan: GridPlan, share: GridShare, executor: ExecutorKind) -> GridTally:
    with share.locked():
        outcomes = plan.finished()
        _declare(plan.grid, plan, share)
        tally = GridTally(plan.cells, outcomes, settle=lambda event: _settle(plan, share, event))
        # Also before: where this command is killed, no rate stands there that was chosen for fewer seeds.
        _write_results(plan, tally)
        print_start(plan, outcomes, share.others(), executor)
    return tally


def _declare(grid: Grid, plan: GridPlan, share: GridShare) -> None:
    declaration = tomli_w.dumps(grid.model_dump(mode="json", exclude_none=True))
    share.join(declaration)
    atomic_write(plan.folder.declaration_file, declaration)


def _end(plan: GridPlan, share: GridShare, tally: GridTally) -> None:
    with share.locked():
        # Cells that failed here, and that another command has finished since.
        for cell in [cell for cell in tally.failed if plan.outcome(cell) is not None]:
            del tally.failed[cell]
            tally.add(Finished(NOBODY, cell))
        _write_results(plan, tally)
        if tally.num_left == len(tally.failed) == len(share.others()) == 0:
            # Needed only while the grid runs.
            for folder in (plan.folder.exports, plan.folder.locks, plan.folder.trainings):
                shutil.rmtree(folder, ignore_errors=True)


def _settle(plan: GridPlan, share: GridShare, event: Finished | Failed) -> Outcome | None:
    """Outcome of a cell; writes a line of results.jsonl, or error.txt, unless another command has run it."""
    if isinstance(event, Failed):
        if event.worker != NOBODY:
            plan.folder.place(event.key).fail(event.message)
        return None
    outcome = _outcome(plan, event.key)
    if isinstance(outcome, Score) and event.worker != NOBODY:
        with share.locked():
            plan.folder.append(outcome)
    return outcome


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


def _write_results(plan: GridPlan, tally: GridTally) -> None:
    selected = select_rates(plan, tally)
    plan.folder.write_results(tally.scores.values(), selected)
    if plan.grid.grid.keep_models == "chosen":
        remove_unchosen_models(plan, tally, selected)
