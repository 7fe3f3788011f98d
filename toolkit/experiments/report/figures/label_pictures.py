"""Figures of scores against labels of models: numbers such as the CLM share, sizes such as `610m`, and texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from toolkit.core.text import first_few
from toolkit.experiments.grid.declaration import Label
from toolkit.experiments.report.compare.levels import Level, ScoreRow, Seeds, family_name
from toolkit.experiments.report.compare.statistics import estimate
from toolkit.experiments.report.compare.tables import slug
from toolkit.experiments.report.figures.lines import OTHERS, Axis, axes_of, lines_of, rows_on
from toolkit.experiments.report.figures.pictures import Panel, Picture, Point, Series, floor_of, floor_sentence
from toolkit.experiments.report.read.labels import MASK_RATIO, title_of
from toolkit.experiments.report.read.tasks import TaskInfo


def label_pictures(level: Level) -> list[Picture]:
    """Family scores against each axis of a level."""
    return [picture for axis in axes_of(level) for picture in _pictures(level, axis)]


def _pictures(level: Level, axis: Axis) -> Iterator[Picture]:
    lines, file = lines_of(level, axis.name), slug(axis.name).replace("_", "-")
    title, drawn = title_of(axis.name), rows_on(level, axis.name)
    caption = f"bars: 95 % t intervals over {level.seeds}."
    without = {
        f"no {title}": [row.name for row in level.rows if axis.name not in row.labels],
        f"{title} 0": [row.name for row in level.rows if axis.name in row.labels and row not in drawn],
    }
    for reason, names in without.items():
        caption += f" Not drawn ({reason}): {first_few(names)}." if names else ""
    if any(row.seeds is Seeds.NONE for members in lines.values() for row in members):
        caption += f" Without a bar: a single {level.seeds.removesuffix('s')}, or none known."
    panels = tuple(_panels(level, axis, lines, varied=False))
    if not panels:
        return
    picture = Picture(
        name=f"{level.name}-by-{file}",
        title=f"Score by {title}",
        caption=f"Mean test score of each family's data sets; {caption}{floor_sentence(panels)}",
        x_label=title,
        panels=panels,
        is_log=axis.is_log,
        ticks=axis.ticks,
    )
    yield picture
    # Lines of a single point have no mean to differ from.
    if axis.name == MASK_RATIO and len(lines) > 1 and (varied := tuple(_panels(level, axis, lines, varied=True))):
        yield replace(
            picture,
            name=f"{level.name}-variation-by-{file}",
            title=f"Variation of the score with the {title}",
            caption=f"Score minus the mean of its line, seed by seed; {caption}",
            panels=varied,
        )


def _panels(level: Level, axis: Axis, lines: Mapping[str, Sequence[ScoreRow]], *, varied: bool) -> Iterator[Panel]:
    """A panel for each family, with its scores or their differences from the mean of each line."""
    make_points, y_label = (_variation_points, "difference (points)") if varied else (_score_points, "test score (%)")
    for kind, tasks in level.families.items():
        # Rows on no line have no line mean to subtract.
        shown = {name: rows for name, rows in lines.items() if not (varied and name == OTHERS)}
        points = {name: list(make_points(rows, tasks, axis)) for name, rows in shown.items()}
        if series := _series(points, axis):
            yield Panel(family_name(kind), series, y_label, floor=None if varied else floor_of(tasks))


def _score_points(rows: Sequence[ScoreRow], tasks: Sequence[TaskInfo], axis: Axis) -> Iterator[Point]:
    for row in rows:
        if (found := row.estimate(tasks)) is not None:
            yield Point.of(axis.places[row.labels[axis.name]], found)


def _variation_points(rows: Sequence[ScoreRow], tasks: Sequence[TaskInfo], axis: Axis) -> Iterator[Point]:
    """Difference of each row from the mean of the rows, over the seeds that all rows share."""
    known = [row for row in rows if row.estimate(tasks) is not None]
    scores = [row.by_seed(tasks) for row in known]
    shared = set[Label].intersection(*map(set, scores)) if len(scores) > 1 else set[Label]()
    if shared:
        seeds = sorted(shared, key=str)
        means = {seed: sum(each[seed] for each in scores) / len(scores) for seed in seeds}
        for row, own in zip(known, scores, strict=True):
            found = estimate([[own[seed] - means[seed] for seed in seeds]])
            yield Point.of(axis.places[row.labels[axis.name]], found)


def _series(points: Mapping[str, Sequence[Point]], axis: Axis) -> tuple[Series, ...]:
    """A series for each line that has points."""
    found = []
    for color, (name, given) in enumerate(points.items()):
        placed = tuple(sorted(given, key=lambda point: point.x))
        # Rows with equal labels share a place on the axis: a line through them would be meaningless.
        is_line = name != OTHERS and not axis.is_category and len({point.x for point in placed}) == len(placed)
        if placed:
            found.append(Series(name, placed, color, is_line))
    return tuple(found)
