"""Choices and printed output of a grid: learning rates, models to keep, diverged and failed cells."""

import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from toolkit.core.console import console
from toolkit.core.text import counted, first_few
from toolkit.experiments.grid.cells import Cell, Outcome
from toolkit.experiments.grid.plan import GridPlan
from toolkit.experiments.grid.selection import Selected, select
from toolkit.experiments.grid.view import GridView
from toolkit.finetuning.precision import versions_and_device
from toolkit.work.start import ExecutorKind

_MOST_NAMED = 20


def remove_unchosen_models(plan: GridPlan, view: GridView, selected: Selected) -> None:
    """Remove the models of all rates but the chosen one, for each model and task whose cells have all finished."""
    open_groups = {cell.group for cell in plan.cells if cell not in view.scores and cell not in view.diverged}
    for cell in plan.cells:
        if cell.group not in open_groups and not _is_chosen(cell, selected):
            shutil.rmtree(plan.folder.place(cell).model, ignore_errors=True)


def _is_chosen(cell: Cell, selected: Selected) -> bool:
    entry = selected.get(cell.model, {}).get(cell.task)
    return entry is not None and entry["learning_rate"] == cell.learning_rate


def counted_cells(plan: GridPlan) -> str:
    """'360 cells of 300 trainings'; trainings are left out if every cell, or none, has its own."""
    num_cells = len(plan.cells)
    num_trainings = sum(cells[0].learning_rate > 0 for cells in plan.cells_by_training.values())
    shared = f" of {counted(num_trainings, 'training')}" if 0 < num_trainings < num_cells else ""
    return f"{counted(num_cells, 'cell')}{shared}"


def print_start(
    plan: GridPlan, outcomes: Mapping[Cell, Outcome], others: Sequence[str], executor: ExecutorKind
) -> None:
    """Print cell counts, other commands that run the cells, and versions or devices of done cells that differ now."""
    screen = console()
    screen.print(f"{plan.folder}: {counted_cells(plan)}, {len(outcomes):,} done before")
    if others:
        screen.print(f"shared with {counted(len(others), 'other command')}: {first_few(others)}")
    made_otherwise: dict[tuple[str, str, str], int] = defaultdict(int)
    here = versions_and_device()
    if executor is not ExecutorKind.LOCAL:
        # Workers of a cluster have this machine's versions, but their own devices.
        del here["device"]
    for name, now in here.items():
        for outcome in outcomes.values():
            was = (outcome.made_by or {}).get(name, now)
            if was != now:
                made_otherwise[name, was, now] += 1
    for (name, was, now), number in made_otherwise.items():
        screen.print(f"{counted(number, 'cell')} made with {name} {was} (now {now}): kept as they are")


def print_outcome(plan: GridPlan, view: GridView) -> None:
    """Print the chosen rates, and the cells without a score or a model."""
    screen, selected = console(), select(plan.cells, view.scores.values())
    for model, tasks in selected.items():
        for task, entry in tasks.items():
            spread = "" if entry["test_std"] is None else f" (standard deviation {entry['test_std']:.4f})"
            # 0 if nothing is trained.
            rate = f", lr {entry['learning_rate']!r}" if entry["learning_rate"] else ""
            screen.print(
                f"{model} {task}: test {entry['metric']} {entry['test_mean']:.4f}{spread}, "
                f"{counted(len(entry['seeds']), 'seed')}{rate}"
            )
    _print_diverged(view, selected)
    _print_missing_models(plan, view, selected)
    outcomes: list[Outcome] = [*view.scores.values(), *view.diverged.values()]
    devices = Counter((outcome.made_by or {}).get("device") for outcome in outcomes)
    del devices[None]
    if len(devices) > 1:
        shares = ", ".join(f"{device} ({counted(number, 'cell')})" for device, number in devices.items())
        screen.print(f"made on {len(devices)} devices, for which scores may differ: {shares}")
    for cell in list(view.failed)[:_MOST_NAMED]:
        screen.print(f"failed: {cell}, see {plan.folder.place(cell).error_file}")
    if view.failed:
        screen.print(f"{counted(len(view.failed), 'cell')} failed. The same command tries them again.")


def _print_diverged(view: GridView, selected: Selected) -> None:
    screen = console()
    seeds: dict[tuple[tuple[str, str], float], list[int]] = defaultdict(list)
    for cell in sorted(view.diverged):
        seeds[cell.group, cell.learning_rate].append(cell.seed)
    lines = [
        f"{' '.join(group)} lr {rate!r}: not chosen, since it diverged: seed {first_few([str(seed) for seed in own])}"
        for (group, rate), own in seeds.items()
    ]
    without_rate = {group for group, _ in seeds if group[1] not in selected.get(group[0], {})}
    lines += [f"{' '.join(group)}: no learning rate could be chosen" for group in sorted(without_rate)]
    for line in lines[:_MOST_NAMED]:
        screen.print(line)
    if len(lines) > _MOST_NAMED:
        screen.print(f"and {len(lines) - _MOST_NAMED:,} more diverged")


def _print_missing_models(plan: GridPlan, view: GridView, selected: Selected) -> None:
    keep = plan.grid.grid.keep_models
    wanted = [cell for cell in view.scores if keep == "all" or (keep == "chosen" and _is_chosen(cell, selected))]
    missing = [cell for cell in wanted if cell.learning_rate and not plan.folder.place(cell).model.is_dir()]
    if missing:
        console().print(
            f"keep_models = '{keep}', but {counted(len(missing), 'cell')} finished without keeping its model: "
            f"{first_few([cell.path for cell in missing])}. Remove these folders below {plan.folder.cells} to "
            "train them again."
        )
