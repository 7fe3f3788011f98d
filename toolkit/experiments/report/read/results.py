"""Results of grid folders: finished cells, chosen learning rates, and the grid files' entries for the models.

One name must mean the same weights, or the same test data, in all of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.text import counted, first_few
from toolkit.experiments.grid.cell_folder import CellFolder, Record, record_differences
from toolkit.experiments.grid.cells import Score
from toolkit.experiments.grid.folder import Declaration, GridFolder, ModelInfo
from toolkit.experiments.report.read.completeness import MissingCell, MissingReason, missing_cells
from toolkit.experiments.report.read.labels import FLOPS, RUN, STEP, TOKENS, Shown
from toolkit.experiments.report.read.tasks import ELSEWHERE, TaskInfo, tasks_with_cells

# Settings that differ between cells of one table.
_OF_A_CELL = ("learning_rate", "seed", "threads")


@dataclass(frozen=True)
class Results:
    """Finished cells of one or several grids."""

    grids: Mapping[tuple[str, str], GridFolder]
    """The folder of each (model, task)."""
    cells: tuple[Score, ...]
    rates: Mapping[tuple[str, str], float]
    """The chosen learning rate of each (model, task)."""
    models: tuple[ModelInfo, ...]
    """In the order of the grid files."""
    tasks: tuple[TaskInfo, ...]
    """In the order of the grid files."""
    declarations: Mapping[Path, str]
    """Texts of the grid files, by folder."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Each (model, task) without a chosen rate: no rate has all its seeds yet, or cells have failed."""
    missing: tuple[MissingCell, ...] = ()
    """Declared cells without a result."""
    shown: Shown = Shown()  # noqa: RUF009

    @property
    def folders(self) -> list[Path]:
        """Folders of the grids."""
        return [grid.path for grid in dict.fromkeys(self.grids.values())]

    def place(self, score: Score) -> CellFolder:
        """The folder of a cell."""
        return self.grids[score.cell.group].place(score.cell)

    @property
    def completeness(self) -> str:
        """Count of the declared cells that have a result: `39 of 60 fine-tuning runs`."""
        elsewhere = sum(cell.kind in ELSEWHERE for cell in self.cells)
        num_all, num = len(self.cells) + len(self.missing) - elsewhere, len(self.cells) - elsewhere
        of_all = f" of {num_all:,}" if self.missing else ""
        ours = f"{num:,}{of_all} fine-tuning {'run' if num_all == 1 else 'runs'}"
        return ", ".join([ours] * bool(num_all) + [f"{counted(elsewhere, 'score')} made elsewhere"] * bool(elsewhere))

    @cached_property
    def unfinished_rates(self) -> dict[tuple[str, str], list[float]]:
        """Learning rates by (model, task) that may still be chosen: cells failed or have not run, but none diverged."""
        diverged = {
            (*one.cell.group, one.cell.learning_rate) for one in self.missing if one.reason is MissingReason.DIVERGED
        }
        found: dict[tuple[str, str], list[float]] = {}
        for model, task, rate in dict.fromkeys((*one.cell.group, one.cell.learning_rate) for one in self.missing):
            if (model, task, rate) not in diverged:
                found.setdefault((model, task), []).append(rate)
        return found

    @property
    def makers(self) -> dict[str, int]:
        """Number of runs by the versions, device and dtype that made them; empty if unknown."""
        found = Counter(map(_maker, self.cells))
        return {} if found.keys() == {"unknown"} else dict(found)

    @property
    def most_makers(self) -> int:
        """Largest number of `makers` for a single task: minimal pairs are fp32 even if other tasks are bf16."""
        pairs = {(cell.task, _maker(cell)) for cell in self.cells}
        return max(Counter(task for task, _ in pairs).values(), default=0)

    @property
    def omission(self) -> str:
        """Sentence on the models and tasks that tables lack; empty if they lack none."""
        names = first_few([f"{model} on {task}" for model, task in self.left_out])
        return f"left out, as no learning rate has all its seeds finished: {names}" if names else ""

    @property
    def unknown_labels(self) -> str:
        """Sentence on labels that figures should show but no model has; empty if there are none."""
        known = {name for model in self.models for name in model.labels or ()}
        lost = [name for name in dict.fromkeys((*self.shown.x, *self.shown.lines)) if name not in known]
        return f"no model with scores has the label {first_few(lost)}, which [report] names" if lost else ""

    def chosen(self, model: str, task: str) -> list[Score]:
        """Cells at the chosen rate, sorted by seed; empty if no rate was chosen."""
        rate = self.rates.get((model, task))
        return [cell for cell in self.of(model, task) if cell.learning_rate == rate]

    def of(self, model: str, task: str) -> list[Score]:
        """All cells of a model and task, sorted by rate and seed."""
        return self._by_pair.get((model, task), [])

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str], list[Score]]:
        found: dict[tuple[str, str], list[Score]] = {}
        for cell in self.cells:
            found.setdefault((cell.model, cell.task), []).append(cell)
        return found


def _maker(cell: Score) -> str:
    return ", ".join(f"{name} {value}" for name, value in cell.made_by.items()) if cell.made_by else "unknown"


def read_results(folders: Iterable[Path]) -> Results:
    """Read grid folders, which may share models and tasks but no (model, task) pair."""
    cells: dict[GridFolder, list[Score]] = {}
    rates: dict[tuple[str, str], float] = {}
    models: dict[str, ModelInfo] = {}
    tasks: dict[str, None] = {}
    declarations: dict[Path, str] = {}
    source: dict[tuple[str, str], GridFolder] = {}
    declared: set[tuple[str, str]] = set()
    missing: list[MissingCell] = []
    shown: list[Shown] = []
    for folder in folders:
        grid = GridFolder(folder)
        cells[grid] = found = grid.read_scores()
        for pair in dict.fromkeys(score.cell.group for score in found):
            if pair in source:
                raise UserError(
                    f"{source[pair]} and {folder} both have cells of the model {pair[0]!r} and the task {pair[1]!r}. "
                    "Rename one in its grid file, or report on the two grids separately."
                )
            source[pair] = grid
        file = grid.read_declaration()
        rates |= grid.read_rates(found, file.cells)
        missing += missing_cells(grid, file, found)
        shown.append(_shown(file))
        if file.text is not None:
            declarations[folder] = file.text
        for model in file.models:
            models[model.name] = _merged(models.get(model.name), model, grid)
        tasks |= dict.fromkeys(file.tasks)
        declared |= {(model.name, task) for model in file.models for task in file.tasks}
    _check_comparable(cells)
    scores = [score for found in cells.values() for score in found]
    names = {score.model for score in scores}
    known = [model for name, model in models.items() if name in names]
    return Results(
        grids=source,
        cells=tuple(sorted(scores, key=lambda score: (*score.cell.group, score.learning_rate, score.seed))),
        rates=rates,
        models=(*known, *(ModelInfo(name) for name in sorted(names - models.keys()))),
        tasks=tasks_with_cells(tasks, scores, lambda score: source[score.cell.group].place(score.cell)),
        declarations=declarations,
        left_out=tuple(sorted((declared | source.keys()) - rates.keys())),
        missing=tuple(missing),
        shown=Shown(*(tuple(dict.fromkeys(chain(*each))) for each in zip(*shown, strict=True))),
    )


def _shown(file: Declaration) -> Shown:
    """Labels shown in figures of a grid; by default all labels of its models, and FLOPs if they have training steps."""
    labels = tuple(dict.fromkeys(name for model in file.models for name in model.labels or () if name != RUN))
    given = file.report
    x = (*labels, *([FLOPS] if STEP in labels else [])) if given.x is None else given.x
    # Totals would give every model its own line: FLOPs differ even if only the mask ratio does.
    lines = tuple(name for name in x if name not in (TOKENS, FLOPS)) if given.lines is None else given.lines
    return Shown(x, lines, given.order)


def _merged(before: ModelInfo | None, model: ModelInfo, grid: GridFolder) -> ModelInfo:
    if before is None:
        return model
    old, new = before.labels or {}, model.labels or {}
    differing = [key for key in sorted(old.keys() & new.keys()) if old[key] != new[key]]
    if differing:
        key = differing[0]
        raise UserError(
            f"the model {model.name!r} has the label {key} = {new[key]!r} in {grid.declaration_file} and {old[key]!r} "
            "in another grid. Rename one of the models, or make the labels equal."
        )
    return ModelInfo(model.name, before.path or model.path, {**old, **new})


def _check_comparable(cells: Mapping[GridFolder, Iterable[Score]]) -> None:
    """Compare the declarations of cells in different grids, as far as their folders exist.

    Different weights of a model, or different test data of a task, are an error; different settings of a task are
    reported, since tables do not show them.
    """
    models: dict[str, dict[Path, Record]] = {}
    tasks: dict[str, dict[Path, Record]] = {}
    for grid, score in ((grid, score) for grid, scores in cells.items() for score in scores):
        if grid.path in models.get(score.model, {}) and grid.path in tasks.get(score.task, {}):
            continue
        if (declared := grid.place(score.cell).declared) is not None:
            models.setdefault(score.model, {}).setdefault(grid.path, declared)
            tasks.setdefault(score.task, {}).setdefault(grid.path, declared)
    for name, grids in models.items():
        _check_equal(
            f"the model {name!r} has other weights", {grid: _of(record, "model") for grid, record in grids.items()}
        )
    for name, grids in tasks.items():
        tests = {grid: sorted(map(str, _of(_of(record, "data"), "test").values())) for grid, record in grids.items()}
        _check_equal(f"the task {name!r} has other test data", tests)
        _report_settings(name, {grid: _of(record, "settings") for grid, record in grids.items()})


def _of(record: Record, key: str) -> Mapping[str, Any]:
    found = record.get(key)
    return found if isinstance(found, dict) else {}


def _check_equal(what: str, by_grid: Mapping[Path, object]) -> None:
    (first, expected), *others = by_grid.items()
    for grid, found in others:
        if found != expected:
            raise UserError(
                f"{what} in {grid} than in {first}. Rename it in one of the grid files: scores under one name are "
                "taken for scores of one thing."
            )


def _report_settings(task: str, by_grid: Mapping[Path, Mapping[str, Any]]) -> None:
    (first, was), *others = [
        (grid, {key: value for key, value in settings.items() if key not in _OF_A_CELL})
        for grid, settings in by_grid.items()
    ]
    for grid, now in others:
        if found := record_differences(was, now):
            console().print(
                f"the task {task!r} was trained with other settings in {grid} than in {first}: {'; '.join(found)}"
            )
