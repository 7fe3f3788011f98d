"""Run files: reading, completion by presets and `--set`, and validation, with every mistake in one message.

This opens only the run file, a checkpoint's manifest if `init.from` is set, and the data if the length of a phase is in
`epochs`.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from toolkit.core.errors import CheckpointError, SettingsError, UserError
from toolkit.core.files import check_folder
from toolkit.core.settings import explain, nearest, validated
from toolkit.data import DataSettings
from toolkit.model.config import ModelSettings
from toolkit.model.presets import MODEL_PRESETS
from toolkit.objectives.registry import DeclaredObjective, declare
from toolkit.objectives.schedulers import are_phases
from toolkit.objectives.schedulers import declare as declare_scheduler
from toolkit.run.checks import mistakes_in
from toolkit.run.continuation import WHAT_TO_GIVE, from_first_weights, from_own
from toolkit.run.data import in_steps
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.folder import RunFolder, check_own_folder
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import StepPlan
from toolkit.run.toml_files import apply_override, find_toml, presets_in, read_toml

_GROUPS_OF_STEPS = {"schedule", "train", "data", "lr"}
_PRESETS = Path(__file__).parent / "presets"
_REQUIRED = {
    "data": "A run needs data.train: the folder of a corpus, as `toolkit preprocess` writes it.",
    "schedule": 'A run needs [[schedule]]: its phases, for example objective = "clm", steps = 1000.',
    "model": "A run needs model.preset, the keys of [model], or init.from: a model to start from.",
    "init.from": "[init] needs init.from: a model, a checkpoint or a run to start from; without one, leave [init] out.",
}
# Used in place of a group that is wrong, so that the others can still be checked.
_STAND_INS: dict[str, Any] = {
    "run": {"dir": "runs/unnamed"},
    "model": MODEL_PRESETS["test"].model_dump(exclude_none=True),
    "data": {"train": "unnamed"},
    "schedule": [{"objective": "clm", "steps": 1}],
}


def run_presets() -> tuple[str, ...]:
    """Names of the run files that ship with the package."""
    return presets_in(_PRESETS)


def preset_data(name: str) -> DataSettings:
    """`[data]` of a shipped preset."""
    return DataSettings.model_validate(read_toml(_PRESETS / f"{name}.toml")["data"])


def load_run(source: str, overrides: Sequence[str] = ()) -> RunSettings:
    """Settings from a run file or the name of a shipped preset, with `a.b=value` overrides on top."""
    return declare_run(source, overrides).settings


def declare_run(source: str, overrides: Sequence[str] = ()) -> DeclaredRun:
    """A run from a run file or the name of a shipped preset, with `a.b=value` overrides on top.

    One message names each key that is wrong, what was found and what would be right.
    """
    path = find_run_file(source)
    raw, mistakes = read_toml(path, expected="run"), list[UserError]()
    for override in overrides:
        with _collected(mistakes):
            apply_override(raw, override)
    if isinstance(folder := raw.setdefault("run", {}), dict):
        folder.setdefault("dir", f"runs/{path.stem}")
    # The file of a preset is not the user's to correct.
    run = complete_run(raw, mistakes, origin=f"preset {source}" if path.parent == _PRESETS else str(path))
    if not any(override.split("=")[0].strip() in ("run", "run.dir") for override in overrides):
        check_own_folder(run.folder, path)
    check_folder(run.folder.path, "run.dir")
    return run


def declare_settings(settings: RunSettings) -> DeclaredRun:
    """A run from settings made in Python; refuses groups of them that contradict each other."""
    settings = in_steps(settings)
    plan = StepPlan(settings)
    for mistake in mistakes_in(settings):
        raise mistake
    return DeclaredRun(settings, plan)


def complete_run(raw: dict[str, Any], mistakes: list[UserError], *, origin: str) -> DeclaredRun:
    """A run from the content of a run file, which is modified; mistakes found earlier are reported with its own.

    `origin` is what messages call the file.
    """
    with _collected(mistakes, raw):
        _expand_model_preset(raw)
    with _collected(mistakes, raw):
        _fill_model_from_checkpoint(raw)
    with _collected(mistakes):
        _expand_schedule(raw)
    return _validate(raw, origin, mistakes)


def read_resolved(path: Path) -> DeclaredRun:
    """A run from the run.toml that it wrote: nothing is filled in from other files."""
    return _validate(read_toml(path), str(path), [])


def read_without_objectives(path: Path) -> RunSettings:
    """Settings of a run.toml for inspection only: a run's objectives may need a plugin that is not installed."""
    return validated(RunSettings, read_toml(path) | {"objectives": {}}, origin=str(path), needed=_REQUIRED)


def to_toml(settings: RunSettings) -> str:
    """The settings as a run file; keys without a value are left out, since TOML has none."""
    return tomli_w.dumps(to_plain(settings))


def is_as_written(path: Path) -> bool:
    """True unless a file has what `to_toml` never writes: comments, a layout of its own, a preset or `[scheduler]`."""
    if not path.is_file():
        return True
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text)
    except (OSError, ValueError):
        return False
    return tomli_w.dumps(raw) == text and "preset" not in _table(raw, "model") and "scheduler" not in raw


def to_plain(settings: RunSettings) -> dict[str, Any]:
    """The settings as the content of a run file, without keys that have no value."""
    return settings.model_dump(mode="json", exclude_none=True, by_alias=True)


@contextmanager
def _collected(mistakes: list[UserError], raw: dict[str, Any] | None = None) -> Iterator[None]:
    """Keep an error for the end. If it leaves `raw` without a model, that is not reported as well."""
    try:
        yield
    except UserError as error:
        mistakes.append(error)
        if raw is not None:
            raw["model"] = _STAND_INS["model"]
            raw.pop("init", None)


def find_run_file(source: str) -> Path:
    """The path of a run file or a shipped preset; a SettingsError if neither exists."""
    if source in MODEL_PRESETS and source not in run_presets() and not Path(source).exists():
        raise SettingsError(
            f'{source} is a preset of a model, not of a run. Set model.preset = "{source}" in a run file, or start '
            f"from the preset of a run: {', '.join(run_presets())}."
        )
    return find_toml(source, _PRESETS, what="run file")


def _expand_model_preset(raw: dict[str, Any]) -> None:
    """Replace model.preset by its keys; other keys of [model] win over them."""
    model = _table(raw, "model")
    if "preset" not in model:
        return
    name = model.pop("preset")
    if not isinstance(name, str) or name not in MODEL_PRESETS:
        hint = nearest(str(name), MODEL_PRESETS)
        raise SettingsError(
            f"unknown model.preset={name!r}.{hint}\nAvailable presets: {', '.join(sorted(MODEL_PRESETS))}."
        )
    raw["model"] = {**MODEL_PRESETS[name].model_dump(exclude_unset=True), **model}


def _fill_model_from_checkpoint(raw: dict[str, Any]) -> None:
    """Fill in missing keys of `[model]` from the model that `init.from` names; given keys win.

    Defaults would not do even if every size is given: rotary angles do not show in the weights' shapes, so other ones
    would silently make another model.
    """
    init, given = _table(raw, "init"), raw.get("model", {})
    if "from" not in init or not isinstance(given, dict):
        return
    source = init["from"]
    if not isinstance(source, str) or not source:
        raise SettingsError(f"invalid value for init.from: got {source!r}. {WHAT_TO_GIVE}")
    folder, url = _table(raw, "run").get("dir"), _table(raw, "checkpoint").get("copy_to")
    copies = url if isinstance(url, str) and url else None
    try:
        own = from_own(RunFolder(folder), copies) if isinstance(folder, str) else None
        found = own or from_first_weights(source)
    except CheckpointError:
        required = {name for name, field in ModelSettings.model_fields.items() if field.is_required()}
        if required <= given.keys():
            # Settings can be inspected without the weights; the run itself asks for them again.
            return
        raise
    assert found.manifest is not None
    # A resumed run keeps its own [model]; its phases carry their own changes.
    model = (found.manifest.settings.get("model") or {}) if found.is_own else found.manifest.table("model")
    if not model:
        raise CheckpointError(
            f"init.from={source}: the manifest there does not describe a model. Give another checkpoint, or the shape "
            "in [model]."
        )
    raw["model"] = {key: value for key, value in model.items() if value is not None} | given


def _expand_schedule(raw: dict[str, Any]) -> None:
    """Replace [scheduler] by the phases that it makes from [[schedule]]; wrong entries stay, and are reported later."""
    if "scheduler" not in raw:
        return
    given, entries, steps = raw.pop("scheduler"), raw.get("schedule"), _table(raw, "train").get("steps")
    scheduler = declare_scheduler(given)
    if are_phases(entries):
        raw["schedule"] = scheduler.phases(entries, steps if isinstance(steps, int) else None)


def _validate(raw: dict[str, Any], origin: str, mistakes: list[UserError]) -> DeclaredRun:
    """The run; its mistakes are raised together with the earlier ones."""
    if "branch" in raw:
        mistakes.append(
            SettingsError(
                "[branch] belongs in a tail, the file of a run that continues another one.\n"
                "Give it to `toolkit branch RUN_DIR --step K --config TAIL.toml`, or leave [branch] out."
            )
        )
    raw = {key: raw[key] for key in raw if key != "branch"} | {"objectives": _declared(raw, mistakes)}
    wrong: set[str] = set()
    try:
        settings = RunSettings.model_validate(raw)
    except ValidationError as error:
        found = explain(error, RunSettings, needed=_REQUIRED).splitlines()
        # A single finding follows the name of the file; more than one are listed below it.
        between = " " if len(found) == 1 else "\n  "
        mistakes.append(SettingsError(between.join([f"{origin}:", *found])))
        wrong = {str(finding["loc"][0]) for finding in error.errors(include_url=False)}
        whole = {key: value for key, value in raw.items() if key not in wrong}
        settings = RunSettings.model_validate({key: _STAND_INS[key] for key in _STAND_INS.keys() & wrong} | whole)
    plans = list[StepPlan]()
    if not wrong & _GROUPS_OF_STEPS:
        with _collected(mistakes):
            settings = in_steps(settings)
            plans.append(StepPlan(settings))
    mistakes += mistakes_in(settings, wrong=wrong)
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        lines = [line for mistake in mistakes for line in str(mistake).removeprefix(f"{origin}:").strip().splitlines()]
        raise SettingsError("\n  ".join([f"{origin}:", *(line.strip() for line in lines)]))
    return DeclaredRun(settings, *plans)


def _table(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table of a run file; empty if it is missing or no table, which is reported elsewhere."""
    found = raw.get(name)
    return found if isinstance(found, dict) else {}


def _tables(given: object) -> list[dict[str, Any]]:
    """The tables in a list; anything else is reported elsewhere."""
    return [entry for entry in given if isinstance(entry, dict)] if isinstance(given, list | tuple) else []


def _declared(raw: Mapping[str, Any], mistakes: list[UserError]) -> dict[str, DeclaredObjective]:
    """The objectives that the run declares or schedules, validated by the classes of their kinds."""
    given, schedule = raw.get("objectives", {}), raw.get("schedule", ())
    if not isinstance(given, dict):
        mistakes.append(SettingsError(f"invalid value for objectives: expected a table, got {given!r}."))
        return {}
    phases = _tables(schedule)
    entries = [*phases, *(entry for phase in phases for entry in _tables(phase.get("mix")))]
    scheduled = [entry["objective"] for entry in entries if isinstance(entry.get("objective"), str)]
    declared = {}
    for name in sorted({*given, *filter(None, scheduled)}):
        with _collected(mistakes):
            declared[name] = declare(name, given.get(name, {}))
    return declared
