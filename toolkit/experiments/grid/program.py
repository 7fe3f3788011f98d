"""`toolkit grid`: resolve -> skip finished cells -> workers run the rest -> results and the chosen rates."""

import shutil
import time
from collections.abc import Collection

import tomli_w

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.files import atomic_write
from toolkit.core.text import counted
from toolkit.experiments.grid.cells import Cell, Outcome
from toolkit.experiments.grid.choice import counted_cells, print_outcome, print_start, remove_unchosen_models
from toolkit.experiments.grid.declaration import Grid
from toolkit.experiments.grid.inputs import HubAccess
from toolkit.experiments.grid.plan import GridPlan
from toolkit.experiments.grid.selection import select
from toolkit.experiments.grid.view import GridView
from toolkit.experiments.grid.workers import grid_command, open_crew, submit_commands
from toolkit.work.commands import Command
from toolkit.work.show import shown
from toolkit.work.start import ExecutorKind

_SECONDS_TO_SEE, _SECONDS_BETWEEN_LOOKS = 90.0, 0.5


def run_grid(grid: Grid, *, num_workers: int | None = None, executor: ExecutorKind = ExecutorKind.LOCAL) -> int:
    """Run the unfinished cells of a grid and return the exit code: 1 if one failed, else 0, also if left to Slurm jobs.

    Several commands may run one grid at the same time: each takes free cells, and ends when all cells have ended.

    `num_workers` defaults to one per GPU, or as many as the cores hold at the cells' number of threads.
    """
    plan = GridPlan(grid)
    with grid_command(plan.folder) as command:
        outcomes = _begin(plan, command, executor)
        missing = [cell for cell in plan.cells if cell not in outcomes]
        plan.check_models(missing)
        if missing and executor is ExecutorKind.SLURM:
            with command.locked():
                most = min(num_workers or 1, len({plan.trainings[cell] for cell in missing}))
                submit_commands(plan.folder, plan.grid.slurm, most=most)
            return 0
        if missing:
            plan.choose_precisions()
        job = plan.job(missing)
        view = GridView(plan.folder, plan.cells, outcomes, job)
        if missing:
            opened = open_crew(executor, job, num_workers=num_workers, logs=plan.folder.logs)
            with opened as crew, shown(view) as look:
                crew.run(look)
        _end(plan, command, view)
    print_outcome(plan, view)
    return 1 if view.failed else 0


def submit_grid(grid: Grid, *, after: Collection[str]) -> None:
    """Submit a grid whose models do not exist yet, as a Slurm job that depends on the jobs with these ids."""
    plan = GridPlan(grid.model_copy(update={"model": ()}), hub=HubAccess.CACHED)
    with grid_command(plan.folder) as command, command.locked():
        _declare(grid, plan, command)
        submit_commands(plan.folder, grid.slurm, most=1, after=after)


def show_grid(grid: Grid) -> None:
    """Print the cells of a grid, how many are done, and what would run; nothing is fetched or written."""
    plan = GridPlan(grid, hub=HubAccess.CACHED)
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


def _begin(plan: GridPlan, command: Command, executor: ExecutorKind) -> dict[Cell, Outcome]:
    with command.locked():
        outcomes = plan.finished()
        _declare(plan.grid, plan, command)
        # Also at the start: if this command is killed, the file has no rate that was chosen for fewer seeds.
        _write_results(plan, GridView(plan.folder, plan.cells, outcomes, plan.job(())))
        print_start(plan, outcomes, command.others(), executor)
    return outcomes


def _declare(grid: Grid, plan: GridPlan, command: Command) -> None:
    declaration = tomli_w.dumps(grid.model_dump(mode="json", exclude_none=True))
    command.join(declaration, otherwise="another grid file, or other checkpoints of its runs")
    if not command.others():
        shutil.rmtree(plan.folder.logs, ignore_errors=True)
    atomic_write(plan.folder.declaration_file, declaration)


def _end(plan: GridPlan, command: Command, view: GridView) -> None:
    _see(view)
    with command.locked():
        # Another command may have finished cells that failed here.
        for cell in list(view.failed):
            if (outcome := plan.outcome(cell)) is not None:
                view.keep(outcome)
        _write_results(plan, view)
        command.leave()
        if view.num_left == len(view.failed) == len(command.others()) == 0:
            # Needed only while the grid runs.
            for folder in (plan.folder.exports, plan.folder.trainings, command.work):
                shutil.rmtree(folder, ignore_errors=True)


def _see(view: GridView) -> None:
    """Wait until all results are visible: NFS may show files of another machine a minute late."""
    begun = time.monotonic()
    while view.num_left:
        if time.monotonic() - begun > _SECONDS_TO_SEE:
            raise UserError(
                f"{counted(view.num_left, 'cell')} finished on other machines, but {_SECONDS_TO_SEE:.0f} seconds later "
                "the results are not seen here. All machines need one file system; the same command goes on."
            )
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        view.look()


def _write_results(plan: GridPlan, view: GridView) -> None:
    selected = select(plan.cells, view.scores.values())
    plan.folder.write_results(view.scores.values(), selected)
    if plan.grid.grid.keep_models == "chosen":
        remove_unchosen_models(plan, view, selected)
