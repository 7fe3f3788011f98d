"""Kinds of objective, by name.

A kind comes from an entry point of the group `toolkit.objectives`, or from `register` in this process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from toolkit.core.plugins import Plugins
from toolkit.core.types import AttentionKind, Vocabulary
from toolkit.objectives.base import Objective, ObjectiveClass

ClassT = TypeVar("ClassT", bound=type)


def _complaints(candidate: object) -> list[str]:
    missing = []
    # A plain string equals a kind without being one; kernels compare by identity and would take the wrong branch.
    if not isinstance(getattr(candidate, "attention", None), AttentionKind):
        missing.append("`attention` is not AttentionKind.CAUSAL or AttentionKind.BIDIRECTIONAL")
    if not callable(getattr(candidate, "build", None)):
        missing.append("`build` is missing")
    return missing


KINDS: Plugins[ObjectiveClass] = Plugins("toolkit.objectives", "objective kind", _complaints)
get, package_of = KINDS.get, KINDS.package_of


def register(objective_class: ClassT) -> ClassT:
    """Register a class under its `name` in this process; usable as a decorator.

    Raises:
        SettingsError: the class lacks something required, or another class already has the name.
    """
    KINDS.register(objective_class)
    return objective_class


@dataclass(frozen=True)
class DeclaredObjective:
    """An objective as a run declares it: a kind, and that kind's settings, validated."""

    kind: str
    settings: BaseModel

    def build(self, vocabulary: Vocabulary) -> Objective:
        """Make the objective; raise `SettingsError` if settings and vocabulary do not fit."""
        return get(self.kind)(self.settings, vocabulary)

    def plain(self) -> dict[str, Any]:
        """The objective as a run file writes it, including all defaults; TOML has no value for None."""
        return {"kind": self.kind, **self.settings.model_dump(mode="json", exclude_none=True)}


def declare(name: str, given: Mapping[str, Any]) -> DeclaredObjective:
    """Validate the settings of an objective: the keys of `objectives.NAME`, whose `kind` defaults to the name."""
    return DeclaredObjective(*KINDS.settings_of(f"objectives.{name}", given, default=name))


def build(kind: str, settings: Mapping[str, Any], vocabulary: Vocabulary) -> Objective:
    """Make an objective of a kind from settings as in a run file; raise `SettingsError` if they are wrong."""
    return declare(kind, settings).build(vocabulary)
