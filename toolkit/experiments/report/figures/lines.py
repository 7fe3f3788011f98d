"""Axes and lines of figures, as named in `[report]` of a grid file: places of values, and rows of a line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.experiments.grid.declaration import Label
from toolkit.experiments.report.compare.levels import Level, ScoreRow, varying_labels
from toolkit.experiments.report.figures.pictures import Ticks
from toolkit.experiments.report.read.labels import (
    CLM_SHARE,
    FLOPS,
    OBJECTIVE,
    RUN,
    SEED,
    STEP,
    TOKENS,
    TOTALS,
    distinguishing,
    names_after,
    order_of,
    places_of,
    quantity,
)

_LOG_FROM = 30.0
_TRAINING = (STEP, TOKENS, FLOPS)
OTHERS = "others"
"""Name of the rows that are on no line."""


@dataclass(frozen=True)
class Axis:
    """A label as an axis, with the place of each of its values."""

    name: str
    places: Mapping[Label, float]
    is_category: bool

    @property
    def is_log(self) -> bool:
        """True if a logarithmic axis shows the places better; always for sizes, which are multiples."""
        places = self.places.values()
        is_wide = min(places) > 0 and (self.ticks is not None or max(places) / min(places) >= _LOG_FROM)
        return is_wide and not self.is_category

    @property
    def ticks(self) -> Ticks | None:
        """Names of the places; None if all are numbers."""
        if not any(isinstance(value, str | bool) for value in self.places):
            return None
        return tuple(sorted({place: str(value) for value, place in self.places.items()}.items()))


def axes_of(level: Level) -> list[Axis]:
    """Axes of a level's figures: labels with several values, which are all numbers or sizes, or all texts."""
    found = (_axis(level, name) for name in level.shown.x if name != SEED)
    return [axis for axis in found if axis is not None]


def _axis(level: Level, name: str) -> Axis | None:
    places = places_of((row.labels[name] for row in rows_on(level, name)), level.shown.order)
    is_category = any(quantity(value) is None for value in places)
    if len(set(places.values())) < 2 or (is_category and not all(isinstance(value, str | bool) for value in places)):
        return None
    return Axis(name, places, is_category)


def rows_on(level: Level, axis: str) -> list[ScoreRow]:
    """Rows that have the label; an axis of training, which may be logarithmic, leaves out rows of step 0."""
    rows = (row for row in level.rows if axis in row.labels)
    return [row for row in rows if axis not in _TRAINING or quantity(row.labels[axis]) != 0]


def lines_of(level: Level, axis: str) -> dict[str, list[ScoreRow]]:
    """Rows on an axis, by the name of their line; rows of one line agree in the labels of lines.

    Checkpoints of runs, drawn along their training, have a line for each run, its end included. A row without a label
    that others have (a pure CLM model has no mask ratio) is on every line that it fits. Lines of a single point are
    grouped as `OTHERS`, and so are models that belong to no run. A line with two rows at one place is split into
    several, named after the labels that differ, and so is one of CLM shares with both phases and mixtures: pure MLM and
    pure CLM, whose objectives differ from all in between, are the ends of each part that has several shares.
    """
    found = dict[str, list[ScoreRow]]()
    for line, rows in comparable_on(level, axis).items():
        places = [row.labels[axis] for row in rows]
        pure = [share for share in (0, 1) if axis == CLM_SHARE and places.count(share) == 1]
        ends = [row for row in rows if row.labels[axis] in pure]
        between = [row for row in rows if row not in ends]
        recipes = {row.labels.get(OBJECTIVE) for row in between if axis == CLM_SHARE}
        if line == OTHERS or (len({*places}) == len(rows) and len(recipes) < 2):
            found[line] = rows
            continue
        apart = _by_labels(line, between, axis)
        whole = {title: [*members, *ends] for title, members in apart.items() if len(members) > 1}
        found |= apart | whole if whole else _by_labels(line, rows, axis)
    return found


def _by_labels(line: str, rows: Sequence[ScoreRow], axis: str) -> dict[str, list[ScoreRow]]:
    """Rows of a line grouped by all labels except the axis; a group is named by the labels that differ, or its row."""
    labels = [{key: row.labels[key] for key in row.labels.keys() - {axis, SEED, RUN, *TOTALS}} for row in rows]
    groups = [group for index, group in enumerate(labels) if group not in labels[:index]]
    titles = names_after(groups, distinguishing(groups))
    found = dict[str, list[ScoreRow]]()
    for row, own in zip(rows, labels, strict=True):
        title = ", ".join(filter(None, (line, titles[groups.index(own)]))) or row.name
        found.setdefault(title, []).append(row)
    return found


def comparable_on(level: Level, axis: str) -> dict[str, list[ScoreRow]]:
    """Rows on an axis that agree in the labels of lines, by name of the line, and the remaining rows as `OTHERS`."""
    rows, beside = rows_on(level, axis), list[ScoreRow]()
    along_runs = axis in _TRAINING and any(RUN in row.labels for row in rows)
    if along_runs:
        runs = {row.labels.get(RUN) for row in rows}
        beside = [row for row in rows if row.labels.get(RUN, row.name) not in runs]
        rows = [row for row in rows if row.labels.get(RUN, row.name) in runs]
    chosen = {RUN} if along_runs else set(level.shown.lines) - {RUN}
    # The objective follows from the share.
    hidden = {axis, SEED, OBJECTIVE if axis == CLM_SHARE else axis}
    names = [name for name in varying_labels(rows) if name in chosen - hidden]
    keys = {id(row): tuple(row.labels.get(name, row.name if name == RUN else None) for name in names) for row in rows}
    lines = [
        key
        for key in dict.fromkeys(keys.values())
        if not any(_fits(key, other) for other in keys.values() if other != key)
    ]
    # Sorted by each label in turn; lines without it come last.
    columns = [[key[index] for key in keys.values()] for index in range(len(names))]
    places = [places_of((value for value in column if value is not None), level.shown.order) for column in columns]
    lines.sort(key=lambda key: order_of(key, places))
    members = {key: [row for row in rows if _fits(keys[id(row)], key)] for key in lines}
    alone = [key for key in lines if len({row.labels[axis] for row in members[key]}) == 1]
    if 1 < len(alone) < len(lines):
        lines = [key for key in lines if key not in alone]
    groups = [dict(zip(names, key, strict=True)) for key in lines]
    others = [row for key in alone if key not in lines for row in members[key]] + beside
    if names == [RUN] and (OTHERS,) not in lines:
        # A run is known by its own name.
        titles = [str(run) for (run,) in lines]
    else:
        titles = names_after(groups, distinguishing(groups) or (names if others else []))
    return {title: members[key] for title, key in zip(titles, lines, strict=True)} | (
        {OTHERS: others} if others else {}
    )


def _fits(key: tuple[Label | None, ...], line: tuple[Label | None, ...]) -> bool:
    return all(value in (None, wanted) for value, wanted in zip(key, line, strict=True))
