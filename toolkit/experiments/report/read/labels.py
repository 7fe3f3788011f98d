"""Labels of models: those that a report knows by name, their values as numbers, and names made from them."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from toolkit.experiments.grid.declaration import Label

SIZE = "size"
"""Models of each size get their own tables, as in the paper."""
SEED = "seed"
"""Pretraining seed: models that differ only in it are one configuration."""
OBJECTIVE, START = "objective", "start"
CLM_SHARE, MASK_RATIO, BUDGET = "clm_share", "mask_ratio", "budget_steps"
STEP, TOKENS, FLOPS = "training_step", "training_tokens", "training_flops"
PARAMETERS = "parameters"
RUN = "run"
"""Name of the grid's entry whose checkpoints are the models."""
TOTALS = (TOKENS, FLOPS)
"""Totals of a training run, which differ between seeds by a few tokens."""
DERIVED = (FLOPS, TOKENS, STEP, PARAMETERS, BUDGET)
"""Labels that usually follow from others; the least informative first."""

_TITLES = {CLM_SHARE: "CLM share", SIZE: "model size", FLOPS: "training FLOPs"}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?) ?([kmb])", re.IGNORECASE)
_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9}


class Shown(NamedTuple):
    """Labels used as axes of figures, labels in which the models of a line agree, and the order of their texts."""

    x: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    order: tuple[Label, ...] = ()


def title_of(label: str) -> str:
    """Axis title of a label."""
    return _TITLES.get(label, label.replace("_", " "))


def quantity(value: Label | None) -> float | None:
    """Numeric value of a label: a number such as `0.25`, or a text such as `610m`; None for any other."""
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        return float(match[1]) * _UNITS[match[2].lower()] if match else None
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def distinguishing(groups: Sequence[Mapping[str, Label | None]]) -> list[str]:
    """Minimal set of labels that distinguishes groups and names each, preferring texts; no two groups may be equal."""
    if len(groups) < 2:
        return []
    names = list(dict.fromkeys(name for group in groups for name in group))
    is_text = {name: any(isinstance(group.get(name), str) for group in groups) for name in names}
    for name in sorted(names, key=lambda name: (name not in DERIVED, is_text[name])):
        fewer = [other for other in names if other != name]
        keys = {tuple(group.get(other) for other in fewer) for group in groups}
        if len(keys) == len(groups) and all(any(value is not None for value in key) for key in keys):
            names = fewer
    return names


def places_of(values: Iterable[Label], order: Sequence[Label] = ()) -> dict[Label, float]:
    """Axis places of values: numbers and sizes at their value, others one after another, `order` first."""
    found = list(dict.fromkeys(values))
    known = [*(value for value in order if value in found), *(value for value in found if value not in order)]
    numbers = [number for value in known if (number := quantity(value)) is not None]
    return dict(zip(known, numbers if len(numbers) == len(known) else map(float, range(len(known))), strict=True))


def order_of(values: Sequence[Label | None], places: Sequence[Mapping[Label, float]]) -> list[float]:
    """Key that sorts by each label in turn, given the `places_of` each; missing labels come last."""
    return [math.inf if value is None else known[value] for value, known in zip(values, places, strict=True)]


def named_after(
    labels: Mapping[str, Label | None], names: Sequence[str], text_of: Callable[[Label], str] | None = None
) -> str:
    """Name made from some labels: `CLM share 0.25, budget steps 12,000`."""
    given = [(name, labels.get(name)) for name in names]
    return ", ".join(f"{title_of(name)} {(text_of or _short)(value)}" for name, value in given if value is not None)


def names_after(groups: Sequence[Mapping[str, Label | None]], names: Sequence[str]) -> list[str]:
    """`named_after` for each group, in full if short numbers, or a number and a text, would look the same."""
    found = [named_after(group, names) for group in groups]
    return found if len(set(found)) == len(found) else [named_after(group, names, repr) for group in groups]


def _short(value: Label) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
