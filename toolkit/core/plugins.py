"""Plugin classes that packages offer by name, through the entry points of a group.

The toolkit's own are declared the same way, in pyproject.toml. A class is imported only when a run uses it: a broken
package does not affect other runs.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, Protocol, TypeVar, cast

from pydantic import BaseModel

from toolkit.core.errors import SettingsError
from toolkit.core.settings import nearest, validated


@lru_cache
def _points_of(group: str, search_path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Cached: scanning all installed packages takes 15 ms or more, and a start asks a dozen times."""
    return tuple(entry_points(group=group))


class PluginClass(Protocol):
    """A class with a settings class."""

    @property
    def Settings(self) -> type[BaseModel]:
        """Its settings class."""


ClassT = TypeVar("ClassT", bound=PluginClass)


@dataclass(frozen=True)
class Plugins(Generic[ClassT]):
    """The classes of one entry-point group, and those registered in this process."""

    group: str
    """Entry point group: name = kind, value = the class."""
    noun: str
    """Noun for messages, put before the name: `objective kind`."""
    complaints: Callable[[object], list[str]]
    """Returns what a candidate lacks, apart from `name` and `Settings`, one phrase each."""
    registered: dict[str, ClassT] = field(default_factory=dict)
    """Classes by kind, registered in this process only."""

    def register(self, candidate: type) -> None:
        """Register a class under its `name` in this process."""
        kind = getattr(candidate, "name", candidate.__name__)
        checked = self._checked(candidate, kind=kind, origin=lambda: class_path(candidate))
        owners = {point.value for point in self._points() if point.name == kind}
        if kind in self.registered:
            owners.add(class_path(self.registered[kind]))
        # The same class may come twice: by entry point and by `register` in its file, or from a module that runs again.
        if owners - {class_path(candidate)}:
            raise SettingsError(
                f"the {self.noun} {kind!r} is already taken by {', '.join(sorted(owners))}. "
                f"Give {class_path(candidate)} another name."
            )
        self.registered[kind] = checked

    def known(self) -> tuple[str, ...]:
        """All kinds, sorted; nothing is imported."""
        return tuple(sorted({*self.registered, *(point.name for point in self._points())}))

    def get(self, kind: str) -> ClassT:
        """The class of a kind; raise `SettingsError` if no package offers it, two do, or its import fails."""
        if kind in self.registered:
            return self.registered[kind]
        points = {point.value: point for point in self._points() if point.name == kind}
        if not points:
            raise SettingsError(
                f"unknown {self.noun} {kind!r}.{nearest(kind, self.known())} Available kinds: {self._others(kind)}.\n"
                f"A package adds one through the entry-point group {self.group!r}."
            )
        if len(points) > 1:
            origins = " and ".join(sorted(_origin(point) for point in points.values()))
            raise SettingsError(f"the {self.noun} {kind!r} is offered by {origins}; uninstall one of them.")
        (point,) = points.values()
        try:
            loaded = point.load()
        except Exception as error:  # A plugin may raise anything, and the user has to learn which one it was.
            raise SettingsError(
                f"the {self.noun} {kind!r} comes from {_origin(point)}, which cannot be imported: "
                f"{type(error).__name__}: {error}\n"
                f"Repair or uninstall it, or choose another kind: {self._others(kind)}."
            ) from error
        return self._checked(loaded, kind=kind, origin=lambda: _origin(point))

    def package_of(self, kind: str) -> str:
        """Name and version of the package that offers a kind; empty for a toolkit kind or one registered here."""
        points = [point for point in self._points() if point.name == kind and not point.value.startswith("toolkit.")]
        return next((f"{point.dist.name} {point.dist.version}" for point in points if point.dist is not None), "")

    def settings_of(self, key: str, given: object, *, default: str) -> tuple[str, BaseModel]:
        """The kind and the validated settings that a table of a run file declares; messages call the table `key`."""
        if not isinstance(given, dict):
            raise SettingsError(f"invalid value for {key}: expected a table, got {given!r}.")
        kind = given.get("kind", default)
        if not isinstance(kind, str):
            raise SettingsError(
                f"invalid value for {key}.kind: expected a string, got {kind!r}. Available kinds: "
                f"{', '.join(self.known())}."
            )
        settings_class = self.get(kind).Settings
        return kind, validated(settings_class, {name: given[name] for name in given if name != "kind"}, group=key)

    def _points(self) -> tuple[EntryPoint, ...]:
        return _points_of(self.group, tuple(sys.path))

    def _others(self, kind: str) -> str:
        return ", ".join(name for name in self.known() if name != kind) or "none"

    def _checked(self, candidate: object, *, kind: str, origin: Callable[[], str]) -> ClassT:
        """The candidate, if it satisfies the contract; `origin` reads a package, so it is only called for a message."""
        missing = []
        if not isinstance(candidate, type):
            missing.append("it is not a class")
        if not isinstance(getattr(candidate, "name", None), str):
            missing.append("`name` is not a string")
        settings = getattr(candidate, "Settings", None)
        if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
            missing.append("`Settings` is not a pydantic class")
        missing += self.complaints(candidate)
        if missing:
            raise SettingsError(
                f"the {self.noun} {kind!r} from {origin()} breaks the contract: {'; '.join(missing)}. "
                "Correct the class."
            )
        return cast("ClassT", candidate)


def class_path(candidate: object) -> str:
    """Path of a class, as an entry point writes it."""
    return f"{getattr(candidate, '__module__', '?')}:{getattr(candidate, '__qualname__', '?')}"


def _origin(point: EntryPoint) -> str:
    package = f"package {point.dist.name} {point.dist.version}" if point.dist else "an unnamed package"
    return f"{package} ({point.value})"
