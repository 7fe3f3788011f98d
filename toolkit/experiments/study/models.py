"""Models of a study: the blocks, expanded along their axes; each model is a whole run with a name and labels."""

import copy
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from toolkit.core.errors import SettingsError, UserError
from toolkit.core.settings import nearest
from toolkit.core.text import counted
from toolkit.experiments.grid.declaration import Label
from toolkit.experiments.study.declaration import ModelBlock, RewarmSettings, Study
from toolkit.experiments.study.folder import StudyFolder
from toolkit.experiments.study.names import Choice, axes_of, labels_of, labels_of_choices, model_name
from toolkit.experiments.study.outside import OutsideRun
from toolkit.run.comparison import Course, parting
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.folder import RunFolder
from toolkit.run.load import complete_run, find_run_file
from toolkit.run.settings import RunFolderSettings
from toolkit.run.toml_files import read_toml

# Keys that a study chooses for each of its models, and what to do instead of setting them.
_CHOSEN = {
    "run.dir": "Each model has a folder of its name; set study.dir",
    "checkpoint.keep_at": "Set study.keep, or keep of a block",
    "checkpoint.keep_weights_only": "Others go on from what a model keeps; use `toolkit study --tidy`",
}
# A phase of a schedule given as text, `clm 3k + mlm 9k`: an objective and a length.
_PHASE = re.compile(r"(\S+)\s+(\d[\d_,]*(?:\.\d+)?)\s*([kKmMbB]?)\s*(%|tokens|steps)?")
_TIMES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


@dataclass(frozen=True)
class Model:
    """A model of a study: the run that trains it alone, in its folder in the study."""

    name: str
    place: str
    """Its place in the study file, in words."""
    run: DeclaredRun
    labels: Mapping[str, Label]
    """Quantities that reports plot scores against."""
    raw: Mapping[str, Any]
    """Its run file, before presets and defaults."""
    source: OutsideRun | None = None
    """The run named in its `from`, if outside the study."""
    keep: Mapping[int, str] = field(default_factory=dict)
    """Steps whose checkpoints the file keeps, each with the key that names it."""

    @property
    def total_steps(self) -> int:
        """Number of updates from the first weights to the end."""
        return self.run.plan.schedule.total_steps


def models_of(study: Study) -> tuple[Model, ...]:
    """All models in file order, but each `from` after its sources; raise `SettingsError` that lists all mistakes."""
    family, waiting = _Family(study), list(enumerate(study.models, start=1))
    while ready := [(number, block) for number, block in waiting if all(map(family.knows, block.sources))]:
        for number, block in ready:
            family.add(number, block)
        waiting = [each for each in waiting if each not in ready]
    family.check(waiting=[block for _, block in waiting])
    return tuple(family.models.values())


class _Family:
    """The models found so far, and the mistakes in the others."""

    def __init__(self, study: Study) -> None:
        self.models: dict[str, Model] = {}
        self._study, self._runs = study, StudyFolder(study.study.dir).runs
        self._mistakes, self._outside = dict[str, list[str]](), dict[str, OutsideRun]()
        path = find_run_file(study.study.base)
        self._base = read_toml(path, expected="run")
        # In names of models it stands for the preset, in characters that a name may have.
        self._stem = re.sub(r"[^\w.+-]+", "-", path.stem).lstrip("-.+")
        if self._base.keys() & {"fork", "branch"}:
            raise SettingsError(
                f"study.base={study.study.base!r} goes on from a checkpoint of another run. Give the run that it left, "
                "and what follows as a model `from` it."
            )
        _check_tables(self._base, place=str(path))
        # The study decides which checkpoints are kept.
        for key in ("keep_every", "keep_weights_only"):
            self._base.get("checkpoint", {}).pop(key, None)

    def knows(self, source: str) -> bool:
        """True if a source is a model found already, or the folder of a run."""
        return source in self.models or RunFolder(source).settings_file.is_file()

    def add(self, number: int, block: ModelBlock) -> None:
        """Find the models of a block."""
        try:
            axes = list(axes_of(block.axes))
            if block.rewarm is not None and not block.sources:
                raise SettingsError("rewarm is of models with from, which names what they go on from. Give both.")
        except SettingsError as error:
            self._mistake(f"block {number}", error)
            return
        keep = dict.fromkeys(block.keep, f"keep of block {number}") | dict.fromkeys(
            self._study.study.keep, "study.keep"
        )
        for source, choices in itertools.product(block.sources or (None,), itertools.product(*axes)):
            after = [] if source is None else [f"from {source!r}"]
            values = [f"{choice.axis} {choice.label!r}" for choice in choices]
            place = ", ".join([f"block {number}", *after, *values])
            try:
                self._add(replace(self._model(block, source, choices, place), keep=keep))
            except UserError as error:
                self._mistake(place, error)

    def check(self, *, waiting: Sequence[ModelBlock]) -> None:
        """Raise `SettingsError` with all mistakes; `waiting` are blocks with a source that is no model's name."""
        # With other mistakes, a source may be missing only because of them.
        mistakes = [*map(self._told, self._mistakes)] or [
            f"from {source!r}: no model trained before this one has that name, and it is not the folder of a run."
            f"{nearest(source, self.models)} Models: {', '.join(self.models) or 'none'}. Models "
            "cannot start from each other."
            for source in dict.fromkeys(source for block in waiting for source in block.sources)
            if not self.knows(source)
        ]
        if mistakes:
            raise SettingsError("\n".join(mistakes))

    def _mistake(self, place: str, error: UserError) -> None:
        """Record a message with its place; one shared by many models is reported once."""
        self._mistakes.setdefault(str(error).removeprefix(f"{place}:").removeprefix(" "), []).append(place)

    def _told(self, mistake: str) -> str:
        first, *more = self._mistakes[mistake]
        where = first + (f", and {counted(len(more), 'more model')}" if more else "")
        return f"{where}:{'' if mistake.startswith(chr(10)) else ' '}{mistake}"

    def _add(self, model: Model) -> None:
        for other in self.models.values():
            # Some file systems ignore case.
            if other.name.casefold() == model.name.casefold():
                alike = "" if other.name == model.name else f", which differs in case alone: {other.name}"
                raise SettingsError(
                    f"the name {model.name} is that of {other.place}, too{alike}. Take one out, or give study.names a "
                    "template, such as 'clm-{clm_share}-seed-{seed}'."
                )
        self.models[model.name] = model

    def _model(self, block: ModelBlock, source: str | None, choices: Sequence[Choice], place: str) -> Model:
        own = merged(block.set, *(choice.changes for choice in choices))
        raw = self._from_base(own) if source is None else self._behind(source, own, block.rewarm or RewarmSettings())
        _check_tables(raw, place=place)
        if found := sorted(raw.keys() & {"fork", "branch"}):
            raise SettingsError(f"[{found[0]}] is not set by hand: a study finds where its models begin. Take it out.")
        given = merged(self._study.set, own)
        for key, remedy in _CHOSEN.items():
            table, _, name = key.partition(".")
            if name in given.get(table, {}):
                raise SettingsError(f"{key} is not set by hand. {remedy} instead.")
        raw["run"] = {**raw.get("run", {}), "dir": str(self._runs / "unnamed")}
        size = str(raw.get("model", {}).get("preset", self._stem))
        run = complete_run(copy.deepcopy(raw), [], origin=place)
        if source is not None:
            self._check_goes_on(run, source)
        labels = labels_of(run, size=size) | labels_of_choices(choices)
        name = model_name(self._study.study.names, labels, run, size=size)
        raw["run"]["dir"] = str(self._runs / name)
        settings = run.settings.model_copy(update={"run": RunFolderSettings(**raw["run"])})
        outside = None if source is None else self._outside.get(source)
        return Model(name, place, replace(run, settings=settings), labels, raw, outside)

    def _check_goes_on(self, run: DeclaredRun, source: str) -> None:
        """Raise `SettingsError` if a model would not start where its source ends, but train from its first step on."""
        if source in self.models:
            before = self.models[source].run
            found = parting(Course(before), Course(run))
        else:
            before = self._outside[source].run
            found = self._outside[source].parting(run)
        last = before.plan.schedule.total_steps
        if found.step < last:
            raise SettingsError(
                f"from {source!r}: it would not go on there, as the two part at step {found.step:,} of {last:,}: "
                f"{found.reason}. Leave that out of [set] and of this block, or take from out."
            )

    def _from_base(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The run file of a model that starts with the study's base."""
        base, given = copy.deepcopy(self._base), _with_phases(merged(self._study.set, own))
        if "schedule" in given and not _has_shares(given["schedule"]):
            # The length of the schedule that is replaced.
            base.get("train", {}).pop("steps", None)
        return merged(base, given)

    def _behind(self, source: str, own: Mapping[str, Any], rewarm: RewarmSettings) -> dict[str, Any]:
        """The run file of a model that continues where another one ends."""
        raw, before = self._whole(source)
        own = _with_phases(own)
        phases = own.pop("schedule", None)
        if not isinstance(phases, list) or not phases or not all(isinstance(phase, dict) for phase in phases):
            raise SettingsError(f"from {source!r}: nothing follows. Give the phases after it as schedule.")
        first, *later = phases
        begun = {"lr": "rewarm", "lr_peak": rewarm.peak, "lr_warmup_steps": rewarm.warmup_steps}
        begun |= {"lr_decay_steps": rewarm.decay_steps, "optimizer": rewarm.optimizer}
        first = {key: value for key, value in begun.items() if value is not None} | first
        raw = merged(raw, own)
        return {**raw, "schedule": [*before, first, *later]}

    def _whole(self, source: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The run file of a source, without its length, and its phases in steps."""
        if source in self.models:
            run, raw = self.models[source].run, dict(copy.deepcopy(self.models[source].raw))
        else:
            if source not in self._outside:
                self._outside[source] = OutsideRun(source)
            outside = self._outside[source]
            run, raw = outside.run, read_toml(outside.folder.settings_file)
            newest, last = outside.folder.newest_step(), run.plan.schedule.total_steps
            if newest != last:
                raise SettingsError(
                    f"from {source!r}: that run stands at {newest:,} of {last:,} steps. Finish it, or make it a model "
                    "of this study."
                )
            raw = merged(raw, self._study.set)
            # Its steps before the fork count as its own.
            raw.pop("fork", None)
        raw["train"] = {key: value for key, value in raw.get("train", {}).items() if key != "steps"}
        raw.pop("scheduler", None)
        phases = zip(run.settings.schedule, run.plan.schedule.phases, strict=True)
        return raw, [
            entry.of_steps(phase.stop - phase.start).model_dump(exclude_defaults=True) for entry, phase in phases
        ]


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables; later ones win key by key."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            both = isinstance(value, Mapping) and isinstance(whole.get(key), Mapping)
            whole[key] = merged(whole[key], value) if both else copy.deepcopy(value)
    return whole


def _check_tables(raw: Mapping[str, Any], *, place: str) -> None:
    """Raise `SettingsError` if a table that is read here is not one; the run itself checks the others."""
    for key in ("run", "model", "train", "checkpoint"):
        if not isinstance(raw.get(key, {}), dict):
            raise SettingsError(f"{place}: invalid value for {key}: expected a table, got {raw[key]!r}.")


def _with_phases(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a run file, with a schedule given as text parsed into phases."""
    schedule = given.get("schedule")
    return {**given, "schedule": parse_schedule(schedule)} if isinstance(schedule, str) else dict(given)


def parse_schedule(text: str) -> list[dict[str, Any]]:
    """Parse a text into `[[schedule]]`; lengths are steps, `12k`, `5B tokens`, or `25%` of `train.steps`."""
    return [_phase(part.strip(), text) for part in text.split("+")]


def _phase(part: str, text: str) -> dict[str, Any]:
    found = _PHASE.fullmatch(part)
    if found is None:
        raise SettingsError(
            f'schedule "{text}": {part!r} is not an objective and a length. Write for example "clm 3k + mlm 9k"; '
            "lengths are steps (750, 12k), tokens (5B tokens) or shares of train.steps (25%)."
        )
    objective, digits, multiple, unit = found.groups()
    # Not in binary: 2.01 x 1000 would not be whole.
    number = Decimal(re.sub("[_,]", "", digits)) * _TIMES[multiple.lower()]
    if unit == "%":
        return {"objective": objective, "fraction": float(number) / 100}
    if number != int(number):
        length = f"{float(number):g} {unit or 'steps'}"
        raise SettingsError(f'schedule "{text}": {part!r} has {length}. Give a whole number.')
    return {"objective": objective, "tokens" if unit == "tokens" else "steps": int(number)}


def _has_shares(schedule: Any) -> bool:
    """True if a schedule has lengths that are shares of `train.steps`."""
    return isinstance(schedule, list) and any(isinstance(phase, dict) and "fraction" in phase for phase in schedule)
