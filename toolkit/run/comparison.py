"""Comparison of two runs: the first update at which they differ, and why. Runs that never differ are the same run.

Steps follow from the runs' plans, which change only at bends: where a phase, a size of a batch warm-up or a part of the
learning rate begins. So it is enough to compare, at each bend, the settings from there on. Learning rates are compared
as formulas, since two schedules may have equal values at one step and not at the next. Hence the parting may be found
early (a decay's first step is still at the peak), but never late.

The comparison sees how a run is set up, not what happened to it: `train.on_spike` may be changed at a resume, and
updates skipped before it was changed back are not seen here. They show as a lower `optimizer_step` in the manifests.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import ValidationError

from toolkit.checkpoint.manifest import FIRST_WEIGHTS
from toolkit.core.errors import CheckpointError, CorpusError, SettingsError
from toolkit.core.text import quoted
from toolkit.core.types import Vocabulary, WordBoundaries
from toolkit.objectives.base import at_progress
from toolkit.objectives.registry import DeclaredObjective, declare, get
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.folder import RunFolder
from toolkit.run.identity import ROPE, flat, from_snapshot, is_free, snapshot
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import StepPlan

_WHOLE = ("run.", "precision", "init", "model.", "train.")
# These are compared at each bend.
_ROPE = tuple(f"model.{key}" for key in ROPE)
_OF_STEPS = ("train.steps", "train.global_batch_rows", *_ROPE)
# An arbitrary vocabulary to build an objective with, and shares of a phase at which it might change.
_WORDS = WordBoundaries(*np.ones((2, 8), dtype=bool))
_ANY = Vocabulary(size=8, mask_id=3, pad_id=1, bos_id=0, eos_id=2, special_ids=(0, 1, 2, 3), words=lambda: _WORDS)
_SHARES = [step / 16 for step in range(17)]


Hashes = Callable[[RunSettings], Mapping[str, str] | None]
"""Settings of a run, with the choices made at its start -> `RunCorpora.hashes`, first weights included; None: corpora
and first weights are compared by path."""


class Held(NamedTuple):
    """A property of a run, or of all steps from one on: the value to compare, and the text to show."""

    value: Any
    shown: str


@dataclass(frozen=True)
class Parting:
    """The step at which two runs part, and why."""

    step: int
    """Number of updates in common; all of the shorter run if it is a prefix of the other."""
    keys: tuple[str, ...] = ()
    """Keys that differ from there on; empty if one run is a prefix of the other."""
    reasons: tuple[str, ...] = ()
    """The differences in words, with both values."""

    @property
    def reason(self) -> str:
        """All reasons in one line."""
        return "; ".join(self.reasons)


@dataclass(frozen=True)
class Course:
    """A run to compare."""

    run: DeclaredRun
    corpora: Mapping[str, str] | None = None
    """`RunCorpora.hashes`; None: corpora and first weights are compared by path."""

    @classmethod
    def of(cls, settings: RunSettings, corpora: Mapping[str, str] | None = None) -> Self:
        """Course of resolved settings."""
        return cls(DeclaredRun(settings, StepPlan(settings)), corpora)

    def bends(self) -> set[int]:
        """0-based indices of the updates at which something changes."""
        found = {0}
        for phase in self.run.plan.schedule.phases:
            found.update(phase.start + stop for stop in (0, *phase.rows.warmup_ends))
        for stretch in self.run.plan.stretches:
            warmup, decay = stretch.settings.ramps(stretch.num_steps)
            found.update((stretch.start, stretch.start + warmup, stretch.planned_stop - decay))
        return found

    def whole(self) -> dict[str, Held]:
        """Settings that hold for the whole run."""
        settings = self.run.settings
        found = {
            key: _held(value)
            for key, value in flat(snapshot(settings)).items()
            if key.startswith(_WHOLE) and not key.startswith(_OF_STEPS) and not is_free(key)
        }
        if settings.train.on_spike == "skip":
            far = settings.train.spike_deviations
            found["train.on_spike"] = Held(far, f"'skip' above {far:g} deviations")
        return found

    def at(self, step: int) -> dict[str, Held]:
        """Settings from the update with 0-based index `step`, a bend, up to the next bend."""
        plan, phase = self.run.plan, self.run.plan.schedule.phase_at(step)
        objectives = [self.run.settings.objectives.get(name) or declare(name, {}) for name in phase.objectives]
        kinds = "+".join(objective.kind for objective in objectives)
        found = {"objective": Held(kinds, kinds)}
        for number, objective in enumerate(objectives):
            # Two objectives of a mixture may be of the same kind.
            place = f"objectives.{number}.{objective.kind}." if len(objectives) > 1 else f"objectives.{objective.kind}."
            found |= _plain(objective.settings.model_dump(mode="json"), place)
        if phase.shares != phase.objective:
            # Rows are dealt from the first step of the phase on.
            found["mix"] = Held((phase.start, *((*entry.ends, entry.weight) for entry in phase.mix)), phase.shares)
        if self.run.settings.train.on_spike == "skip":
            found["phase.start"] = Held(phase.start, f"begins after step {phase.start:,}")
        if any(entry.is_ramp for entry in phase.mix) or any(map(_changes, objectives)):
            stop = phase.start + phase.planned_steps
            found["phase"] = Held((phase.start, stop), f"steps {phase.start + 1:,} to {stop:,}")
        model = _plain(plan.model_at(step).model_dump(), "model.")
        found |= {key: held for key, held in model.items() if key.startswith(_ROPE)}
        found |= self.rows_of(phase.index)
        for key, number in (("rows", plan.rows_at(step)), ("position", plan.position(step))):
            found[key] = Held(number, f"{number:,}")
        is_reset = plan.resets_optimizer(step)
        found["optimizer"] = Held(is_reset, "reset" if is_reset else "kept")
        found["lr"] = _rate(plan, step)
        return found

    def rows_of(self, number: int) -> dict[str, Held]:
        """Settings that, besides the seed, determine the row order of a phase's data."""
        phases = self.run.plan.data
        # Equal data are named after the first phase that reads them.
        first = self.run.plan.first_on_data[number]
        data, entry = phases[first], self.run.settings.schedule[first]
        paths = [data.train] if isinstance(data.train, str) else [part.path for part in data.train]
        weights = [1.0] if isinstance(data.train, str) else [part.weight for part in data.train]
        corpora = paths
        if self.corpora is not None:
            key = f"schedule.{first}.data.train" if "train" in (entry.data or {}) else "data.train"
            named = sorted(name for name in self.corpora if name == key or name.startswith(f"{key}."))
            corpora = [self.corpora[name] for name in named]
        train = Held((corpora, weights), ", ".join(paths))
        return {"data.train": train} | _plain(data.model_dump(exclude={"train", "validation"}), "data.")


def parting(a: Course, b: Course) -> Parting:
    """The first update at which two runs differ, and why.

    Layout, kernels, saving, logging and evaluation are ignored.
    """
    stop = min(a.run.plan.schedule.total_steps, b.run.plan.schedule.total_steps)
    whole = a.whole(), b.whole()
    weights = [(course.corpora or {}).get(FIRST_WEIGHTS) for course in (a, b)]
    if all(weights):
        for held, found in zip(whole, weights, strict=True):
            held[FIRST_WEIGHTS] = Held(found, f"{held[FIRST_WEIGHTS].shown} (weights {str(found)[:12]})")
    if differing := _differing(*whole):
        return Parting(0, tuple(differing), tuple(differing.values()))
    for step in sorted(a.bends() | b.bends()):
        if step < stop and (differing := _differing(a.at(step), b.at(step))):
            return Parting(step, tuple(differing), tuple(differing.values()))
    return Parting(stop)


def check_same_run(
    saved: Mapping[str, Any],
    settings: RunSettings,
    *,
    corpora: tuple[Mapping[str, str], Mapping[str, str]] | None = None,
) -> None:
    """Refuse resolved settings of another run than the one whose `snapshot` was saved, naming every difference.

    `corpora` are `RunCorpora.hashes` of both; without them, corpora are compared by path.
    """
    before, now = flat(saved), flat(snapshot(settings))
    changed = [
        f"  {key}: was {_in_words(before, key)}, now {_in_words(now, key)}"
        for key in sorted(before.keys() | now.keys())
        if not is_free(key) and before.get(key) != now.get(key)
    ]
    if not changed or _is_one(saved, settings, *(corpora or (None, None))):
        return
    written = RunFolder(settings.run.dir).settings_file
    resume = f" (toolkit train {quoted(written)})" if written.is_file() else ""
    raise SettingsError(
        f"the run in {settings.run.dir} was started with other settings:\n" + "\n".join(changed) + "\n"
        f"Resume with the same ones{resume}, or give the new run another run.dir. Another schedule or other data "
        "from a step of this run on: "
        f"toolkit branch {quoted(settings.run.dir)} --step K --config TAIL.toml --output DIR."
    )


def check_same_corpora(saved: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse to resume if a setting names another corpus, or other first weights, than before; both arguments are
    `RunCorpora.hashes`.
    """
    for key, manifest_hash in saved.items():
        if is_free(key) or found.get(key, manifest_hash) == manifest_hash:
            continue
        if key == FIRST_WEIGHTS:
            raise CheckpointError(
                f"{key} names other weights than when the run was started: their hash is {found[key][:12]}, and that "
                f"of those that it began with is {manifest_hash[:12]}.\nPut them back, or give the new run another "
                "run.dir."
            )
        raise CorpusError(
            f"{key} names another corpus than when the run was started: its corpus.json has SHA-256 "
            f"{found.get(key)}, and the checkpoint was trained on {manifest_hash}.\n"
            "Put the corpus back, or give the new run another run.dir."
        )


def _is_one(
    saved: Mapping[str, Any], settings: RunSettings, there: Mapping[str, str] | None, here: Mapping[str, str] | None
) -> bool:
    """Return whether two runs, though written differently, never part: equal steps, or a corpus in another place."""
    try:
        was = from_snapshot(saved)
    except (ValidationError, SettingsError):
        return False
    # The handling of spikes may change.
    spikes = {key: getattr(settings.train, key) for key in ("on_spike", "spike_deviations")}
    was = was.model_copy(update={"train": was.train.model_copy(update=spikes)})
    courses = Course.of(was, there), Course.of(settings, here)
    found = parting(*courses)
    return not found.keys and all(found.step == course.run.plan.schedule.total_steps for course in courses)


def _in_words(settings: Mapping[str, Any], key: str) -> str:
    return "not set" if settings.get(key) is None else repr(settings[key])


def _differing(there: Mapping[str, Held], here: Mapping[str, Held]) -> dict[str, str]:
    """Keys that differ, each with both values in words."""
    nothing = _held(None)
    found = {}
    for key in sorted(there.keys() | here.keys()):
        theirs, ours = there.get(key, nothing), here.get(key, nothing)
        if theirs.value != ours.value:
            found[key] = f"{key}: {theirs.shown} there, {ours.shown} here"
    if "objective" in found:
        # Different objectives have different settings anyway.
        return {key: told for key, told in found.items() if not key.startswith("objectives.")}
    return found


def _held(value: object) -> Held:
    return Held(value, "not set" if value is None else repr(value))


def _plain(settings: Mapping[str, Any], prefix: str) -> dict[str, Held]:
    return {f"{prefix}{key}": _held(value) for key, value in flat(dict(settings)).items()}


def _changes(objective: DeclaredObjective) -> bool:
    """Return whether an objective changes in the course of a phase, so that it depends on where the phase ends."""
    if not hasattr(get(objective.kind), "at"):
        return False
    try:
        built = objective.build(_ANY)
        return any(at_progress(built, share) is not built for share in _SHARES)
    except SettingsError:
        # It does not accept an arbitrary vocabulary.
        return True


def _rate(plan: StepPlan, step: int) -> Held:
    """Formula of the learning rate from a bend on."""
    stretch = plan.stretch_at(step)
    lr, (warmup, decay) = stretch.settings, stretch.settings.ramps(stretch.num_steps)
    top, bottom = stretch.start + warmup, stretch.planned_stop - decay
    # A warm-up of one step is at the peak, and so is a decay of one step.
    if step < top and warmup > 1:
        shown = f"from 0 to {lr.peak:g} over steps {stretch.start + 1:,} to {top:,}"
        is_chosen = lr.warmup_steps is None
        return Held((lr.peak, stretch.start, top), shown + " (lr.warmup_steps is not set)" * is_chosen)
    if step < bottom or decay == 1:
        return Held(lr.peak, f"{lr.peak:g} up to step {bottom:,}")
    shape = lr.decay if lr.kind == "wsd" else lr.kind
    shown = f"from {lr.peak:g} to {lr.floor:g} x that over steps {bottom + 1:,} to {stretch.planned_stop:,} ({shape})"
    return Held((lr.peak, lr.floor, shape, bottom, stretch.planned_stop), shown)
