"""What the figures show, as values: panels of series. `drawing` makes SVG and PDF of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolkit.experiments.report.grid_files import CellScores, Label
from toolkit.experiments.report.levels import SEED_LABEL, Level, Row, family_name, varying_labels
from toolkit.experiments.report.manifests import BUDGET, FLOPS, PARAMETERS, STEP, TOKENS
from toolkit.experiments.report.results import Results, TaskInfo
from toolkit.experiments.report.runs import RunCurves
from toolkit.experiments.report.statistics import estimate

# What follows from other labels: an axis, but no reason for a line of its own, as long as other labels tell rows apart.
_DERIVED = (FLOPS, TOKENS, STEP, PARAMETERS, BUDGET)
_LOG_FROM = 30.0
_TITLES = {
    "clm_share": "CLM share",
    "mask_ratio": "mask ratio",
    FLOPS: "training FLOPs",
    SEED_LABEL: "pretraining seed",
}


@dataclass(frozen=True)
class Point:
    """A value and how far its error bar reaches, which may be nowhere."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """A line, or points that no line connects; `color` is an index into the palette, the same in all panels."""

    label: str
    points: tuple[Point, ...]
    color: int
    is_line: bool = True


@dataclass(frozen=True)
class Panel:
    """A coordinate system; `marks` are positions of vertical lines."""

    title: str
    series: tuple[Series, ...]
    y_label: str
    marks: tuple[float, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A figure; `name` is that of its files."""

    name: str
    title: str
    caption: str
    x_label: str
    panels: tuple[Panel, ...]
    is_log: bool = False
    has_points: bool = True


def label_pictures(level: Level) -> list[Picture]:
    """Family scores against each label that is a number and differs between rows."""
    names = [name for name in level.label_names if not _is_repeated(level, name)]
    return [picture for name in names if (picture := _label_picture(level, name)) is not None]


def _is_repeated(level: Level, name: str) -> bool:
    """Whether another axis shows the same: tokens follow from steps, and the steps of whole runs are their budget."""
    if name == TOKENS:
        return STEP in level.label_names
    return name == STEP and all(row.labels.get(STEP) == row.labels.get(BUDGET) for row in level.rows)


def title_of(label: str) -> str:
    """A label as an axis names it."""
    return _TITLES.get(label, label.replace("_", " "))


def _label_picture(level: Level, name: str) -> Picture | None:
    rows = [row for row in level.rows if _is_number(row.labels.get(name))]
    values = {float(row.labels[name]) for row in rows}
    if len(values) < 2 or name == SEED_LABEL:
        return None
    lines = group_rows(rows, name)
    panels = tuple(
        panel for kind, tasks in level.families.items() if (panel := _family_panel(kind, tasks, name, lines)).series
    )
    if not panels:
        return None
    return Picture(
        name=f"{level.name}-by-{name.replace('_', '-')}",
        title=f"Score by {title_of(name)}",
        caption=f"Mean test score of each family's data sets; bars: 95 % t intervals over {level.seeds}.",
        x_label=title_of(name),
        panels=panels,
        is_log=_is_wide(values),
    )


def group_rows(rows: Sequence[Row], axis: str) -> dict[str, list[Row]]:
    """Rows by line: those that differ, beside `axis`, in no other label.

    A row without a label that others have (a pure CLM model has no mask ratio) is on every line that it fits. Labels
    that follow from others are dropped, and then further ones, as long as no line would have two points.
    """
    names = list(varying_labels(rows))
    others = [name for name in names if name not in (axis, SEED_LABEL)]
    # Least telling first.
    others.sort(key=lambda name: _DERIVED.index(name) if name in _DERIVED else len(_DERIVED))
    while True:
        lines = _lines(rows, others)
        if not others or any(len({row.labels[axis] for row in members}) > 1 for members in lines.values()):
            break
        others.pop(0)
    while others and others[0] in _DERIVED:
        fewer = _lines(rows, others[1:])
        if any(len({row.labels[axis] for row in members}) < len(members) for members in fewer.values()):
            break
        lines = fewer
        others.pop(0)
    return {_line_name(key): members for key, members in lines.items()}


_Key = tuple[tuple[str, Label | None], ...]


def _lines(rows: Sequence[Row], names: Sequence[str]) -> dict[_Key, list[Row]]:
    keys: dict[_Key, None] = {tuple((name, row.labels.get(name)) for name in names): None for row in rows}
    whole = [key for key in keys if not any(_fits(key, other) for other in keys if other != key)]
    return {
        key: [row for row in rows if _fits(tuple((name, row.labels.get(name)) for name in names), key)] for key in whole
    }


def _fits(key: _Key, line: _Key) -> bool:
    return all(value in (None, wanted) for (_, value), (_, wanted) in zip(key, line, strict=True))


def _line_name(key: _Key) -> str:
    return ", ".join(f"{title_of(name)} {_short(value)}" for name, value in key if value is not None)


def _short(value: Label) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _family_panel(kind: str, tasks: Sequence[TaskInfo], axis: str, lines: Mapping[str, Sequence[Row]]) -> Panel:
    series = []
    for color, (label, rows) in enumerate(lines.items()):
        points = sorted(_row_points(rows, tasks, axis), key=lambda point: point.x)
        if points:
            # Rows that other labels tell apart share a place on the axis: a line through them would say nothing.
            is_line = len({point.x for point in points}) == len(points)
            series.append(Series(label, tuple(points), color, is_line))
    return Panel(family_name(kind), tuple(series), y_label="test score (%)")


def _row_points(rows: Sequence[Row], tasks: Sequence[TaskInfo], axis: str) -> Iterator[Point]:
    for row in rows:
        found = row.estimate(tasks)
        if found is not None:
            limits = (None, None) if found.t is None else (100 * found.t.low, 100 * found.t.high)
            yield Point(float(row.labels[axis]), 100 * found.mean, *limits)


def rate_picture(results: Results, level: Level, members: Mapping[str, Sequence[str]]) -> Picture | None:
    """Test scores against the learning rate, a panel for each task that has several; None without one.

    Args:
        results: of the grids.
        level: whose rows are the lines.
        members: names of the models of each row.
    """
    panels = []
    for task in results.tasks:
        series = []
        for color, row in enumerate(level.rows):
            cells = [cell for model in members[row.name] for cell in results.of(model, task.name)]
            if points := _rate_points(cells):
                series.append(Series(row.name, points, color))
        if len({point.x for line in series for point in line.points}) > 1:
            panels.append(Panel(task.name, tuple(series), y_label=f"test {task.metric} (%)"))
    if not panels:
        return None
    return Picture(
        name="learning-rates",
        title="Sensitivity to the learning rate",
        caption="Mean test score over seeds at each learning rate of fine-tuning; bars: one standard deviation.",
        x_label="learning rate",
        panels=tuple(panels),
        is_log=True,
    )


def _rate_points(cells: Sequence[CellScores]) -> tuple[Point, ...]:
    by_rate: dict[float, list[float]] = {}
    for cell in cells:
        by_rate.setdefault(cell.learning_rate, []).append(100 * cell.score)
    points = []
    for rate, scores in sorted(by_rate.items()):
        found = estimate([scores])
        limits = (None, None) if found.std is None else (found.mean - found.std, found.mean + found.std)
        points.append(Point(rate, found.mean, *limits))
    return tuple(points)


def loss_picture(runs: Sequence[RunCurves]) -> Picture | None:
    """Losses of runs over their steps, with a line where the objective changes; None without runs."""
    if not runs:
        return None
    marks = tuple(sorted({float(step) for run in runs for step in run.switches}))
    training = tuple(
        Series(run.name, tuple(Point(*pair) for pair in run.training), color) for color, run in enumerate(runs)
    )
    names = list(dict.fromkeys(name for run in runs for name in run.held_out))
    panels = [Panel("training batches", tuple(line for line in training if line.points), _NATS, marks)]
    for name in names:
        lines = tuple(
            Series(run.name, tuple(Point(*pair) for pair in run.held_out[name]), color)
            for color, run in enumerate(runs)
            if name in run.held_out
        )
        panels.append(Panel(f"held out: {name.upper()}", lines, _NATS, marks))
    return Picture(
        name="losses",
        title="Pretraining losses",
        caption="Cross-entropy in nats per target token; vertical lines: the objective changes.",
        x_label="training step",
        panels=tuple(panel for panel in panels if panel.series),
        has_points=False,
    )


_NATS = "loss (nats per token)"


def _is_number(value: Label | None) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_wide(values: set[float]) -> bool:
    """Whether a logarithmic axis shows them better."""
    return min(values) > 0 and max(values) / min(values) >= _LOG_FROM
