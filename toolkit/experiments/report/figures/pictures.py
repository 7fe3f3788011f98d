"""Contents of figures, as data: panels of series. `drawing` renders them as SVG and PDF."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from toolkit.experiments.report.compare.statistics import Estimate
from toolkit.experiments.report.read.runs import Curve, RunCurves, repeats
from toolkit.experiments.report.read.study import StudyModel
from toolkit.experiments.report.read.tasks import TaskInfo, majority_of

_NATS = "loss (nats/token)"
# For a study's picture: line widths, and the colour of series that belong to no objective.
_STABLE, _DECAY, _FORK = 4.0, 1.6, 0.8
_GREY = 5
Ticks = tuple[tuple[float, str], ...]
"""Named places on an axis."""


@dataclass(frozen=True)
class Point:
    """A value, with the ends of its error bar if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, x: float, found: Estimate) -> "Point":
        """A score in percent with its t interval."""
        limits = (None, None) if (t := found.interval) is None else (100 * t.low, 100 * t.high)
        return cls(x, 100 * found.mean, *limits)


@dataclass(frozen=True)
class Series:
    """A line, or points that no line connects; `color` is an index into the palette, the same in all panels."""

    label: str
    points: tuple[Point, ...]
    color: int
    is_line: bool = True
    width: float | None = None
    """Line width; None: the default."""


@dataclass(frozen=True)
class Panel:
    """A coordinate system; `marks` are positions of vertical lines."""

    title: str
    series: tuple[Series, ...]
    y_label: str
    marks: tuple[float, ...] = ()
    floor: float | None = None
    """Value of the best answer that reads no text: a dashed line, unless it is far below all others."""
    rows: Ticks | None = None
    """Names on the y axis, each with room for its text; None: numbers."""


@dataclass(frozen=True)
class Picture:
    """A figure; `name` is the stem of its file names."""

    name: str
    title: str
    caption: str
    x_label: str
    panels: tuple[Panel, ...]
    is_log: bool = False
    has_points: bool = True
    ticks: Ticks | None = None
    """Names on the x axis; None: numbers."""


def floor_sentence(panels: Sequence[Panel]) -> str:
    """Sentence for the caption about the floors of panels; empty if there are none."""
    has_floor = any(panel.floor is not None for panel in panels)
    return " Dashed, unless far below: the best answer that reads no text." if has_floor else ""


def floor_of(tasks: Sequence[TaskInfo]) -> float | None:
    """The `floor` of a panel of these data sets."""
    found = majority_of(tasks)
    return None if found is None else 100 * found


def loss_picture(runs: Sequence[RunCurves], *, unigram: Mapping[str, float] | None = None) -> Picture | None:
    """Losses of runs over their steps, with a line where the objective changes; None if there are none.

    `unigram`: cross-entropy of a unigram model on the held-out targets, by objective.
    """
    if not runs:
        return None
    marks = tuple(sorted({float(step) for run in runs for step in run.switches}))
    groups = repeats(runs)
    training = tuple(
        Series(title, _mean_curve([run.training for run in found]), color)
        for color, (title, found) in enumerate(groups)
    )
    panels = [Panel("training batches", tuple(line for line in training if line.points), _NATS, marks)]
    found = [key for run in runs for key in run.held_out]
    names = dict.fromkeys(name for name, _ in found)
    corpora = list(dict.fromkeys(corpus for _, corpus in found if corpus))
    # Corpora of a single run share a panel, to compare them; of several runs, each has its own, to compare the runs.
    shares_panel = len(groups) == 1 < len(corpora)
    parts = {"": [""]} | ({", by corpus": corpora} if shares_panel else {f", {corpus}": [corpus] for corpus in corpora})
    for which, group in parts.items():
        for name in names:
            floor = None if which else (unigram or {}).get(name)
            lines = _held_out(groups, name, group)
            panels.append(Panel(f"held out: {name.upper()}{which}", lines, _NATS, marks, floor=floor))
    if not any(panel.series for panel in panels):
        return None
    return Picture(
        name="losses",
        title="Pretraining losses",
        caption="Cross-entropy in nats per target token, from the first step on; vertical lines: the objective changes."
        + (
            " Bands: from the lowest to the highest of several seeds, around their mean."
            if len(groups) < len(runs)
            else ""
        )
        + (" Dashed: the unigram baseline, each token by its frequency in the training text." if unigram else ""),
        x_label="training step",
        panels=tuple(panel for panel in panels if panel.series),
        has_points=False,
    )


def _held_out(
    groups: Sequence[tuple[str, Sequence[RunCurves]]], name: str, corpora: Sequence[str]
) -> tuple[Series, ...]:
    """A line for each group of runs and corpus; several corpora get their own names and colours."""
    is_one = len(corpora) == 1
    lines = (
        Series(
            title if is_one else f"{title}, {corpus}",
            _mean_curve([run.held_out[name, corpus] for run in runs if (name, corpus) in run.held_out]),
            number if is_one else number + len(groups),
        )
        for number, ((title, runs), corpus) in enumerate(itertools.product(groups, corpora))
    )
    return tuple(line for line in lines if line.points)


def _mean_curve(curves: Sequence[Curve]) -> tuple[Point, ...]:
    """Mean and range of curves at the steps that all have, without step 0, which would dominate the scale."""
    if len(curves) == 1:
        return tuple(Point(*pair) for pair in curves[0] if pair[0] > 0)
    found = [dict(curve) for curve in curves]
    steps = sorted(set[float]().union(*found).intersection(*found) - {0.0})
    values = [[curve[step] for curve in found] for step in steps]
    return tuple(Point(x, fmean(ys), min(ys), max(ys)) for x, ys in zip(steps, values, strict=True))


def study_picture(models: Sequence[StudyModel], *, name: str, title: str) -> Picture:
    """A line for each model from the checkpoint that it starts from, in the colours of its objectives."""
    places = {model.name: -float(row) for row, model in enumerate(models)}
    objectives = list(dict.fromkeys(segment.objective for model in models for segment in model.segments))
    forks, segments, kept = list[Series](), list[Series](), list[Point]()
    for model in models:
        place = places[model.name]
        if model.giver in places:
            ends = (Point(model.fork, places[model.giver]), Point(model.fork, place))
            forks.append(Series("", ends, _GREY, width=_FORK))
        for segment in model.segments:
            ends, color = (Point(segment.start, place), Point(segment.stop, place)), objectives.index(segment.objective)
            segments.append(Series(segment.objective, ends, color, width=_DECAY if segment.decays else _STABLE))
        kept += [Point(step, place) for step in model.kept]
    # Dots are drawn on top.
    series = (*forks, *segments, Series("checkpoint", tuple(kept), _GREY, is_line=False))
    return Picture(
        name=name,
        title=title,
        caption="A line is the steps that a model trains itself, from the checkpoint that it begins from; thin: the "
        "learning rate decays; dots: checkpoints that are kept.",
        x_label="training step",
        panels=(Panel("", series, "", rows=tuple((place, model) for model, place in places.items())),),
        has_points=False,
    )
