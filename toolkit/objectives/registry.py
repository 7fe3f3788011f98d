"""Kinds of objective, by name.

A kind comes from an entry point of the group `toolkit.objectives` (ours are declared the same way, in
pyproject.toml), or from `register` in this process. A class is imported when a run uses it, not before: a broken
package does not affect other runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from toolkit.core.errors import SettingsError
from toolkit.core.settings import explain, nearest
from toolkit.core.types import AttentionKind, Vocabulary
from toolkit.objectives.base import Objective, ObjectiveClass

_GROUP = "toolkit.objectives"
_registered: dict[str, ObjectiveClass] = {}

ClassT = TypeVar("ClassT", bound=type)


def register(objective_class: ClassT) -> ClassT:
    """Make a class known under its `name` in this process; usable as a decorator.

    Raises:
        SettingsError: the class lacks something, or another class already has the name.
    """
    kind = getattr(objective_class, "name", objective_class.__name__)
    checked = _check(objective_class, kind=kind, origin=_path(objective_class))
    owners = {point.value for point in _points() if point.name == kind}
    if kind in _registered:
        owners.add(_path(_registered[kind]))
    # The same class may come twice: by entry point and by a `register` line in its file, or by a module run again.
    if owners - {_path(objective_class)}:
        raise SettingsError(
            f"the objective kind {kind!r} is already taken by {', '.join(sorted(owners))}. "
            f"Give {_path(objective_class)} another name."
        )
    _registered[kind] = checked
    return objective_class


def known() -> tuple[str, ...]:
    """All kinds, sorted; nothing is imported."""
    return tuple(sorted({*_registered, *(point.name for point in _points())}))


def get(kind: str) -> ObjectiveClass:
    """The class of a kind.

    Raises:
        SettingsError: no package offers the kind, two do, or the one that does fails on import.
    """
    if kind in _registered:
        return _registered[kind]
    points = {point.value: point for point in _points() if point.name == kind}
    if not points:
        raise SettingsError(_unknown(kind))
    if len(points) > 1:
        origins = " and ".join(sorted(_origin(point) for point in points.values()))
        raise SettingsError(f"the objective kind {kind!r} is offered by {origins}; uninstall one of them.")
    (point,) = points.values()
    try:
        loaded = point.load()
    except Exception as error:  # A plugin may raise anything, and the user has to learn which one it was.
        raise SettingsError(
            f"the objective kind {kind!r} comes from {_origin(point)}, which cannot be imported: "
            f"{type(error).__name__}: {error}\nRepair or uninstall it, or choose another kind: {_others(kind)}."
        ) from error
    return _check(loaded, kind=kind, origin=_origin(point))


@dataclass(frozen=True)
class DeclaredObjective:
    """An objective as a run declares it: a kind, and that kind's settings, validated."""

    kind: str
    settings: BaseModel

    def build(self, vocabulary: Vocabulary) -> Objective:
        """Make the objective; raises SettingsError if settings and vocabulary do not fit."""
        return get(self.kind)(self.settings, vocabulary)

    def plain(self) -> dict[str, Any]:
        """As a run file writes it, every default included; TOML has no value for None."""
        return {"kind": self.kind, **self.settings.model_dump(mode="json", exclude_none=True)}


def declare(name: str, given: Mapping[str, Any]) -> DeclaredObjective:
    """Validate the settings of an objective.

    Args:
        name: what the run calls it.
        given: the keys of `objectives.NAME`; `kind` defaults to the name.

    Raises:
        SettingsError: an unknown kind, or settings that are invalid for it.
    """
    kind = given.get("kind", name)
    if not isinstance(kind, str):
        raise SettingsError(
            f"invalid value for objectives.{name}.kind: expected a string, got {kind!r}. Give a kind of objective: "
            f"{', '.join(known())}."
        )
    objective_class = get(kind)
    try:
        settings = objective_class.Settings.model_validate({key: given[key] for key in given if key != "kind"})
    except ValidationError as error:
        raise SettingsError(explain(error, objective_class.Settings, group=f"objectives.{name}")) from None
    return DeclaredObjective(kind, settings)


def build(kind: str, settings: Mapping[str, Any], vocabulary: Vocabulary) -> Objective:
    """Make an objective from the fields of its settings class, as a run file gives them (without `kind`).

    Raises:
        SettingsError: an unknown kind, or settings that are invalid for it.
    """
    return declare(kind, settings).build(vocabulary)


def _points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=_GROUP))


def _path(objective_class: object) -> str:
    """The class as an entry point names it."""
    return f"{getattr(objective_class, '__module__', '?')}:{getattr(objective_class, '__qualname__', '?')}"


def _origin(point: EntryPoint) -> str:
    package = f"package {point.dist.name} {point.dist.version}" if point.dist else "an unnamed package"
    return f"{package} ({point.value})"


def _others(kind: str) -> str:
    return ", ".join(name for name in known() if name != kind) or "none"


def _unknown(kind: str) -> str:
    return (
        f"unknown objective kind {kind!r}.{nearest(kind, known())} Available kinds: {_others(kind)}.\n"
        f"A package adds one through the entry-point group {_GROUP!r}."
    )


def _check(candidate: object, *, kind: str, origin: str) -> ObjectiveClass:
    """The candidate, if it satisfies the contract."""
    missing = []
    if not isinstance(candidate, type):
        missing.append("it is not a class")
    if not isinstance(getattr(candidate, "name", None), str):
        missing.append("`name` is not a string")
    # A plain string equals a kind without being one; kernels compare by identity and would take the wrong branch.
    if not isinstance(getattr(candidate, "attention", None), AttentionKind):
        missing.append("`attention` is not AttentionKind.CAUSAL or AttentionKind.BIDIRECTIONAL")
    settings = getattr(candidate, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        missing.append("`Settings` is not a pydantic class")
    if not callable(getattr(candidate, "build", None)):
        missing.append("`build` is missing")
    if missing:
        raise SettingsError(
            f"the objective kind {kind!r} from {origin} breaks the contract: {'; '.join(missing)}. Correct the class."
        )
    return cast("ObjectiveClass", candidate)
