"""Axes of a block of models, and what each of their values changes in a run file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.core.settings import nearest
from toolkit.experiments.grid.declaration import Label
from toolkit.run.identity import is_free
from toolkit.run.settings import RunSettings

# What reports call the values of an axis; of the others it is the key.
_LABELS = {"run.seed": "seed", "objectives.mlm.mask_ratio": "mask_ratio", "model.preset": "size"}
_OF_RUN_FILES = frozenset(RunSettings.model_fields) | {"scheduler"}


@dataclass(frozen=True)
class Choice:
    """A value of an axis: what it changes in a run file, and the label that says so."""

    axis: str
    label: Label
    changes: Mapping[str, Any]


def axes_of(axes: Mapping[str, Any]) -> Iterator[list[Choice]]:
    """The values of each axis: of a key of the run file, or of a name with fragments of one."""
    for name, given in axes.items():
        if name in _OF_RUN_FILES:
            yield from _axes_of_keys((name,), given)
        elif isinstance(given, dict) and given and all(isinstance(part, dict) for part in given.values()):
            yield [Choice(name, label, changes) for label, changes in given.items()]
        else:
            raise SettingsError(
                f"axes.{name}: {name!r} is not a table of a run file, which would have lists of values below it, nor "
                f"an axis of its own, which would have tables: axes.{name}.small = {{ model.preset = '210m' }}."
                f"{nearest(name, _OF_RUN_FILES)}"
            )


def _axes_of_keys(path: tuple[str, ...], given: Any) -> Iterator[list[Choice]]:
    axis = ".".join(path)
    if isinstance(given, dict) and given:
        for key, below in given.items():
            yield from _axes_of_keys((*path, key), below)
        return
    if not isinstance(given, list) or not given:
        raise SettingsError(f"axes.{axis}: expected a list of values, got {given!r}.")
    # Validation belongs to a run's identity, and no step reads it.
    if is_free(axis) or axis.startswith("data.validation"):
        raise SettingsError(
            f"axes.{axis}: it changes no weight, so all its models would be the same. Give it in [set]."
        )
    yield [Choice(axis, _label(value), _nested(path, value)) for value in given]


def labels_of_choices(choices: Iterable[Choice]) -> dict[str, Label]:
    """Labels that axes give."""
    named = {_LABELS.get(choice.axis, choice.axis.replace(".", "_")): choice.label for choice in choices}
    return {name: label for name, label in named.items() if name != "schedule"}


def _label(value: Any) -> Label:
    return value if isinstance(value, str | int | float | bool) else str(value)


def _nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)
