"""Labels as axes: which of them differ between rows, and where their values stand."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toolkit.experiments.grid.declaration import Label
from toolkit.report.compare.levels import Level, Row
from toolkit.report.figures.lines import repeated_labels
from toolkit.report.figures.pictures import Ticks
from toolkit.report.read.labels import CLM_SHARE, OBJECTIVE, SEED, places_of, quantity

_LOG_FROM = 30.0
_MOST_CATEGORIES = 12


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
