"""Axes and lines of a figure, as the labels of rows decide: where values stand, and which rows a line is through."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.experiments.grid.declaration import Label
from toolkit.report.compare.levels import Level, Row, varying_labels
from toolkit.report.figures.pictures import Ticks
from toolkit.report.read.labels import (
    BUDGET,
    CLM_SHARE,
    DERIVED,
    FLOPS,
    OBJECTIVE,
    PARAMETERS,
    SEED,
    SIZE,
    STEP,
    TOKENS,
    distinguishing,
    named_after,
    names_after,
    order_of,
    places_of,
    quantity,
)

_LOG_FROM = 30.0
_MOST_CATEGORIES = 12

_Key = tuple[tuple[str, Label | None], ...]


@dataclass(frozen=True)
class Axis:
    """A label as an axis: the place of each of its values."""

    name: str
    places: Mapping[Label, float]
    is_category: bool

    @property
    def is_log(self) -> bool:
        """True if a logarithmic axis shows the places better; that of sizes always, which are multiples."""
        places = self.places.values()
        is_wide = min(places) > 0 and (self.ticks is not None or max(places) / min(places) >= _LOG_FROM)
        return is_wide and not self.is_category

    @property
    def ticks(self) -> Ticks | None:
        """Names of the places; None where all are numbers."""
        if not any(isinstance(value, str | bool) for value in self.places):
            return None
        return tuple(sorted({place: str(value) for value, place in self.places.items()}.items()))


def axes_of(level: Level) -> dict[str, Axis]:
    """Axes by label: each that differs between rows, as far as it is a number or one of a few texts."""
    hidden = repeated_labels(level) | {SEED}
    if CLM_SHARE in level.label_names:
        hidden.add(OBJECTIVE)
    found = (_axis(level.rows, name) for name in level.label_names if name not in hidden)
    return {axis.name: axis for axis in found if axis is not None}


def _axis(rows: Iterable[Row], name: str) -> Axis | None:
    """The axis of a label; None where it has one value, or too many that are no numbers."""
    places = places_of(row.labels[name] for row in rows if name in row.labels)
    is_category = any(quantity(value) is None for value in places)
    are_texts = all(isinstance(value, str | bool) for value in places)
    if len(set(places.values())) < 2 or (is_category and not (are_texts and len(places) <= _MOST_CATEGORIES)):
        return None
    return Axis(name, places, is_category)


@dataclass(frozen=True)
class Lines:
    """Rows by the name of their line."""

    rows: Mapping[str, Sequence[Row]]
    common: str
    """What the names of all lines would say."""
    num_left_out: int
    """Rows that are on no line."""


def repeated_labels(level: Level) -> set[str]:
    """Labels that show what another one shows: tokens and parameters beside steps and sizes, steps of whole runs."""
    names = set(level.label_names)
    found = {name for name, other in ((TOKENS, STEP), (PARAMETERS, SIZE)) if {name, other} <= names}
    if all(row.labels.get(STEP) == row.labels.get(BUDGET) for row in level.rows):
        found.add(STEP)
    return found & names


def lines_of(rows: Sequence[Row], axis: str) -> Lines:
    """The lines of rows that have a label, drawn along it.

    Where some lines have points of their own at several places, those that have not are left out: they would say
    nothing about the axis.
    """
    groups = _group(rows, axis)
    # By one label after the other; lines without it come last.
    columns = [[value for _, value in column] for column in zip(*groups, strict=True)]
    places = [places_of(value for value in column if value is not None) for column in columns]
    groups = dict(sorted(groups.items(), key=lambda item: order_of([value for _, value in item[0]], places)))
    # Of all, since a line stands for its own rows alone even where others are left out.
    names = distinguishing([dict(key) for key in groups])
    num_lines = {id(row): sum(any(row is other for other in members) for members in groups.values()) for row in rows}
    own = {key: [row for row in members if num_lines[id(row)] == 1] for key, members in groups.items()}
    for candidates in (own, groups):
        kept = {key: groups[key] for key, members in candidates.items() if len(_places(members, axis)) > 1}
        if kept:
            groups = kept
            break
    drawn = {id(row) for members in groups.values() for row in members}
    common = [name for name in names if len({dict(key)[name] for key in groups}) == 1]
    own_names = [name for name in names if name not in common]
    if len(groups) > 1 and any(all(dict(key)[name] is None for name in own_names) for key in groups):
        common, own_names = [], names
    return Lines(
        dict(zip(names_after([dict(key) for key in groups], own_names), groups.values(), strict=True)),
        common=named_after(dict(next(iter(groups))), common),
        num_left_out=len(rows) - len(drawn),
    )


def _group(rows: Sequence[Row], axis: str) -> dict[_Key, list[Row]]:
    """Rows by line: those that differ, beside `axis`, in no other label.

    A row without a label that others have (a pure CLM model has no mask ratio) is on every line that it fits. Labels
    that follow from others are dropped, and then further ones, as long as no line would have two points.
    """
    # The objectives follow from their shares, and along a run the share from the step.
    follows = {CLM_SHARE: OBJECTIVE, STEP: CLM_SHARE, FLOPS: CLM_SHARE}.get(axis)
    derived = DERIVED if follows is None else (*DERIVED, follows)
    others = [name for name in varying_labels(rows) if name not in (axis, SEED)]
    # Least telling first.
    others.sort(key=lambda name: derived.index(name) if name in derived else len(derived))
    while True:
        lines = _lines(rows, others)
        if not others or any(len(_places(members, axis)) > 1 for members in lines.values()):
            break
        others.pop(0)
    for name in [name for name in others if name in derived]:
        remaining = [other for other in others if other != name]
        fewer = _lines(rows, remaining)
        if all(len(_places(members, axis)) == len(members) for members in fewer.values()):
            lines, others = fewer, remaining
    return lines


def _places(rows: Sequence[Row], axis: str) -> set[Label | None]:
    return {row.labels.get(axis) for row in rows}


def _lines(rows: Sequence[Row], names: Sequence[str]) -> dict[_Key, list[Row]]:
    keys: dict[_Key, None] = {tuple((name, row.labels.get(name)) for name in names): None for row in rows}
    whole = [key for key in keys if not any(_fits(key, other) for other in keys if other != key)]
    return {
        key: [row for row in rows if _fits(tuple((name, row.labels.get(name)) for name in names), key)] for key in whole
    }


def _fits(key: _Key, line: _Key) -> bool:
    return all(value in (None, wanted) for (_, value), (_, wanted) in zip(key, line, strict=True))
