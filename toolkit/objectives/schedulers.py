"""Schedulers: plugins that make the phases of a run from its `[[schedule]]`, before the run starts.

A scheduler is a class like this, found through an entry point of the group `toolkit.schedulers` (name = kind, value =
the class):

    class Reversed:
        '''The list in reverse.'''

        name = "reversed"

        class Settings(Settings):
            '''Nothing to set.'''

        def phases(self, entries, settings, total_steps):
            return entries[::-1]

Only its result is part of the run: run.toml has the phases that it returned, and neither a resumed run nor another
machine calls it again.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeGuard, cast

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from toolkit.core.errors import SettingsError
from toolkit.core.plugins import Plugins, class_path
from toolkit.core.settings import Settings, explain
from toolkit.objectives.phase_settings import PhaseSettings

PhaseEntry = dict[str, Any]
"""A `[[schedule]]` entry: the keys that the run file gives it."""

_ENTRIES = TypeAdapter(Annotated[list[PhaseSettings], Field(min_length=1)])


class Scheduler(Protocol):
    """Makes phases from the entries of `[[schedule]]`. Pure: equal arguments give equal results."""

    def phases(
        self, entries: list[PhaseEntry], settings: Any, total_steps: int | None
    ) -> Sequence[PhaseEntry | PhaseSettings]:
        """The phases of a run, in order; each has the form of a `[[schedule]]` entry.

        Args:
            entries: those of the run file, at least one, each valid as a phase. Keys that a scheduler does not know
                belong to the phase and are passed on.
            settings: an instance of `Settings`: the keys of `[scheduler]` without `kind`.
            total_steps: `train.steps`; None if it is not given.
        """


class SchedulerClass(Protocol):
    """A class that makes a scheduler, without arguments."""

    name: ClassVar[str]
    Settings: ClassVar[type[BaseModel]]

    def __call__(self) -> Scheduler:
        """Make one."""


def _complaints(candidate: object) -> list[str]:
    return [] if callable(getattr(candidate, "phases", None)) else ["`phases` is missing"]


KINDS: Plugins[SchedulerClass] = Plugins("toolkit.schedulers", "scheduler", _complaints)


class PhasesSettings(Settings):
    """Nothing to set."""


class Phases:
    """The list unchanged."""

    name: ClassVar[str] = "phases"
    Settings: ClassVar[type[PhasesSettings]] = PhasesSettings

    def phases(self, entries: list[PhaseEntry], settings: PhasesSettings, total_steps: int | None) -> list[PhaseEntry]:
        """See `Scheduler.phases`."""
        return entries


class AlternateSettings(Settings):
    """Number of times that the list is gone through."""

    cycles: int = Field(gt=0)
    """Number of passes over the list; `steps`, `tokens` and `epochs` are those of one cycle, `fraction` those of
    the run."""


class Alternate:
    """The list repeated; fractions are divided by the number of cycles, so that they still sum to 1."""

    name: ClassVar[str] = "alternate"
    Settings: ClassVar[type[AlternateSettings]] = AlternateSettings

    def phases(
        self, entries: list[PhaseEntry], settings: AlternateSettings, total_steps: int | None
    ) -> list[PhaseEntry]:
        """See `Scheduler.phases`."""
        shares = [{"fraction": entry["fraction"] / settings.cycles} if "fraction" in entry else {} for entry in entries]
        return [entry | share for entry, share in zip(entries, shares, strict=True)] * settings.cycles


@dataclass(frozen=True)
class DeclaredScheduler:
    """A scheduler as a run file declares it: a kind, and that kind's settings, validated."""

    kind: str
    settings: BaseModel

    def phases(self, entries: Sequence[PhaseEntry], total_steps: int | None) -> list[PhaseEntry]:
        """The phases that it makes, validated; raise `SettingsError` if it raises, or returns anything else."""
        scheduler_class = KINDS.get(self.kind)
        culprit = f"the scheduler {self.kind!r} ({class_path(scheduler_class)})"
        try:
            found = scheduler_class().phases(copy.deepcopy(list(entries)), self.settings, total_steps)
        except Exception as error:  # A plugin may raise anything, and the user has to learn which one it was.
            raise SettingsError(
                f"{culprit} failed: {type(error).__name__}: {error}\n"
                "Correct [scheduler] or [[schedule]], or repair its package."
            ) from error
        if not isinstance(found, list | tuple) or not found:
            raise SettingsError(
                f"{culprit} returned {found!r}, expected a list of at least one phase. Repair its package."
            )
        return [_checked(phase, f"schedule.{number}", culprit) for number, phase in enumerate(found)]


def declare(given: Mapping[str, Any]) -> DeclaredScheduler:
    """Validate `[scheduler]`; `kind` defaults to `phases`."""
    return DeclaredScheduler(*KINDS.settings_of("scheduler", given, default=Phases.name))


def are_phases(entries: object) -> TypeGuard[list[PhaseEntry]]:
    """True if this is a list of valid `[[schedule]]` entries, at least one."""
    try:
        _ENTRIES.validate_python(entries)
    except ValidationError:
        return False
    return True


def _checked(phase: object, key: str, culprit: str) -> PhaseEntry:
    entry = phase.model_dump(exclude_unset=True, by_alias=True) if isinstance(phase, PhaseSettings) else phase
    try:
        PhaseSettings.model_validate(entry)
    except ValidationError as error:
        found = explain(error, PhaseSettings, group=key)
        raise SettingsError(f"{culprit} returned an invalid phase: {found}\nRepair its package.") from None
    return cast("PhaseEntry", entry)
