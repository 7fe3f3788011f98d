"""Branches: new runs that leave a parent run at a kept checkpoint, with another tail.

A branch is a run with more phases: its run.toml has the parent's phases up to there, then the tail's, which carry the
tail's keys. It is a fork, so settings that would have changed the earlier steps are refused. The parent is only read.
"""

from bisect import bisect
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.checkpoint.read import open_unverified
from toolkit.core.errors import SettingsError
from toolkit.core.files import atomic_write, check_folder
from toolkit.core.settings import Settings, validated
from toolkit.core.text import counted, quoted
from toolkit.model.config import ModelSettings
from toolkit.objectives.phase_settings import PhaseSettings
from toolkit.run.checks import check_corpora
from toolkit.run.continuation import Continuation
from toolkit.run.corpora import open_corpora
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.folder import RunFolder
from toolkit.run.identity import flat, saved_settings, snapshot
from toolkit.run.load import complete_run, declare_settings, to_plain, to_toml
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import FREE_IN_PHASES, changed_data
from toolkit.run.toml_files import apply_override, read_toml

_OF_A_RISE = ("peak", "warmup_steps", "decay_steps")


class TailSettings(Settings):
    """`[branch]` of a tail: what happens to optimizer and learning rate where the branch begins."""

    optimizer: Literal["keep", "reset"] = "keep"
    """Optimizer moments: kept, or reset to zero."""
    lr: Literal["keep", "rewarm"] = "keep"
    """`keep`: the rate of one run of all steps; `rewarm`: warm-up, stable and decay over the tail alone."""


def make_branch(
    parent: Path, *, step: int, tail: Path, output: Path, overrides: Sequence[str] = ()
) -> tuple[Path, list[str]]:
    """Write a branch's run file into the folder `output`; also return lines on what is kept and what starts over.

    The branch leaves `parent` at `step`, which has a kept checkpoint. The file `tail` has `[[schedule]]` from that step
    on, other changes, and `[branch]`; overrides (`a.b=value`) come on top.
    """
    manifest, checkpoint = _branch_point(parent, step)
    raw = read_toml(tail)
    for override in overrides:
        apply_override(raw, override)
    choices = validated(TailSettings, raw.pop("branch", {}), origin=str(tail), group="branch")
    before = declare_settings(saved_settings(manifest))
    _check_output(output, parent)
    merged = _merged(before.settings, raw, tail_file=tail, output=output)
    whole = _whole(merged, raw, before, manifest, choices=choices, origin=str(tail))
    run = complete_run(whole | {"fork": {"from": str(checkpoint), "step": step}}, [], origin=str(tail))
    corpora = open_corpora(run)
    check_corpora(run.settings, corpora)
    Continuation(manifest, str(checkpoint), "fork.from").check(run, corpora)
    file = RunFolder(output).settings_file
    try:
        output.mkdir(parents=True, exist_ok=True)
        atomic_write(file, to_toml(run.settings))
    except OSError as error:
        raise SettingsError(f"could not write {file}: {error.strerror}. Give a folder that can be written.") from error
    return file, _notes(run, before, choices)


def _branch_point(parent: Path, step: int) -> tuple[CheckpointManifest, Path]:
    """Manifest and folder of the parent's checkpoint at a step."""
    folder = RunFolder(parent)
    kept = sorted(number for number, _ in folder.steps())
    if not kept:
        what = "has no checkpoint" if parent.is_dir() else "is not a directory"
        raise SettingsError(f"{parent} {what}. Give the folder of a run that has saved one.")
    if step not in kept:
        place = bisect(kept, step)
        near = kept[max(place - 1, 0) : place + 1]
        raise SettingsError(
            f"step {step:,} of {parent} is not a kept checkpoint; the nearest kept ones are "
            f"{', '.join(str(number) for number in near)}.\n"
            "Give one of the kept steps; checkpoint.keep_every=N in a run's file keeps every multiple of N."
        )
    path = folder.checkpoint(step)
    checkpoint = open_unverified(path)
    checkpoint.check_sizes()
    return checkpoint.manifest, path


def _check_output(output: Path, parent: Path) -> None:
    check_folder(output, "--output")
    folder = RunFolder(output)
    if output.resolve().is_relative_to(parent.resolve()):
        raise SettingsError(f"--output {output} is the run {parent}, or inside it. Give a folder beside it.")
    if folder.settings_file.exists() or folder.steps():
        raise SettingsError(
            f"--output {output} holds a run already. Give the folder of a new run, or remove that one; to go on with "
            f"it: toolkit train {quoted(folder.settings_file)}."
        )


def _merged(parent: RunSettings, tail: Mapping[str, Any], *, tail_file: Path, output: Path) -> dict[str, Any]:
    """The parent's settings with the tail's keys on top."""
    if "schedule" not in tail:
        raise SettingsError(
            f"{tail_file}: a tail needs [[schedule]]: its phases from the branch point on, for example "
            'objective = "mlm", steps = 1000.'
        )
    if given := sorted({"init", "fork"} & tail.keys()):
        raise SettingsError(f"{tail_file}: a branch starts from its checkpoint. Leave [{given[0]}] out.")
    raw = to_plain(parent)
    # Not inherited: the phases, the length, and the place of copies, since each run has its own.
    for table, own in ((raw, "schedule"), (raw, "fork"), (raw["train"], "steps"), (raw["checkpoint"], "copy_to")):
        table.pop(own, None)
    if isinstance(raw["checkpoint"].get("keep_best"), str):
        # It may name an objective that the tail does not have.
        del raw["checkpoint"]["keep_best"]
    for key, value in tail.items():
        if not isinstance(value, Mapping) or not isinstance(raw.get(key), dict):
            raw[key] = value
        elif "preset" in value:
            # The corpus decides the vocabulary, not the preset.
            raw[key] = {known: found for known, found in raw[key].items() if known == "vocab_size"} | {**value}
        elif key == "objectives":
            raw[key] |= {name: _objective(raw[key].get(name), given) for name, given in value.items()}
        else:
            raw[key] = changed_data(raw[key], value) if key == "data" else {**raw[key], **value}
    if isinstance(tail.get("run"), Mapping) and tail["run"].get("dir", str(output)) != str(output):
        raise SettingsError(
            f"{tail_file}: run.dir={tail['run']['dir']!r}, and --output names {output}. Leave run.dir out."
        )
    if isinstance(raw["run"], dict):
        raw["run"]["dir"] = str(output)
    return raw


def _objective(before: Any, given: Any) -> Any:
    """The parent's objective with the tail's settings on top; if the kinds differ, no setting is inherited."""
    are_tables = isinstance(before, dict) and isinstance(given, Mapping)
    is_same_kind = are_tables and given.get("kind", before["kind"]) == before["kind"]
    return {**before, **given} if is_same_kind else given


def _whole(
    merged: dict[str, Any],
    tail: Mapping[str, Any],
    before: DeclaredRun,
    manifest: CheckpointManifest,
    *,
    choices: TailSettings,
    origin: str,
) -> dict[str, Any]:
    """The whole run: the parent's phases up to the step, then the tail's, with lengths in steps."""
    # A tail's mistakes are reported with its own phase numbers; its learning rate belongs to the whole run.
    rates, raw = tail.get("lr", {}), deepcopy(merged)
    if isinstance(rates, Mapping):
        fraction = {key: value for key, value in rates.items() if key == "decay_fraction"}
        raw["lr"] = fraction | {"warmup_steps": 0, "decay_steps": 0}
    alone = complete_run(raw, [], origin=origin)
    declared, step = to_plain(before.settings), manifest.step
    past = _past(before, step)
    scheduled = {entry.objective for phase in past for entry in phase.entries}
    theirs, ours = declared["objectives"], merged["objectives"]
    # A parent's objective gets another name if the tail has a different one under its own.
    names = {name: name if theirs.get(name) in (None, ours.get(name)) else f"{name}-to-{step}" for name in scheduled}
    past = [phase.renamed(names) for phase in past]
    # The run keeps data, rows and rotary angles of the earlier steps; the tail's are set on its own phases.
    given = {key: value for key, value in tail.get("data", {}).items() if key != "validation"}
    before_rows, tail_rows = (group["train"]["global_batch_rows"] for group in (declared, merged))
    model, angles = _model(declared["model"], merged["model"], before.plan.model_at(step - 1), tail.get("model", {}))
    phases = []
    for phase, entry in zip(alone.plan.schedule.phases, alone.settings.schedule, strict=True):
        rows = entry.global_batch_rows or (tail_rows if tail_rows != before_rows else None)
        data = given | (entry.data or {})
        own = {key: value for key, value in data.items() if declared["data"].get(key) != value}
        update = {"global_batch_rows": rows, "data": own or None, "model": angles | (entry.model or {}) or None}
        phases.append(entry.of_steps(phase.stop - phase.start).model_copy(update=update))
    lr, phases = _with_rates(before, step, past, phases, given=rates, choices=choices)
    moved = _moved(alone, before, manifest)
    schedule = [entry.model_copy(update={"data": _placed(entry.data, moved)}) for entry in phases]
    validation = {key: value for key, value in merged["data"].items() if key == "validation"}
    train = {key: value for key, value in merged["train"].items() if key != "steps"}
    return {key: value for key, value in merged.items() if key != "scheduler"} | {
        "model": model,
        "data": _placed(declared["data"], moved) | validation,
        "train": train | {"global_batch_rows": before_rows},
        "lr": lr,
        "objectives": ours | {new: theirs[old] for old, new in names.items() if old != new},
        "schedule": [entry.model_dump(by_alias=True, exclude_none=True) for entry in schedule],
    }


def _model(
    declared: dict[str, Any], merged: dict[str, Any], last: ModelSettings, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`[model]` of the whole run, and keys of it for the tail's phases: the tail's, else the last phase's."""
    known = {**last.model_dump(mode="json", exclude_none=True), **given}
    own = {key: known[key] for key in FREE_IN_PHASES if key in known and declared.get(key) != known[key]}
    of_run = {key: value for key, value in merged.items() if key not in own}
    return of_run | {key: declared[key] for key in own if key in declared}, own


def _with_rates(
    before: DeclaredRun,
    step: int,
    past: list[PhaseSettings],
    phases: list[PhaseSettings],
    *,
    given: Mapping[str, Any],
    choices: TailSettings,
) -> tuple[dict[str, Any], list[PhaseSettings]]:
    """`[lr]` of the whole run, and its phases: a tail's peak, warm-up and decay apply to its phases that warm up again.

    If the rate is kept and nothing warms up, they apply to the stretch that continues. That one's warm-up keeps its
    length; a warm-up that the tail leaves unset is a share of its own stretch.
    """
    stretch, declared = before.plan.stretch_at(step - 1), before.settings.lr
    begun = max((number for number, entry in enumerate(past) if entry.lr == "rewarm"), default=None)
    has_past, fraction = choices.lr == "rewarm" or begun is not None, None
    if has_past and "decay_steps" not in given and given.get("kind", declared.kind) == "wsd":
        # Of each stretch that the tail has a part in; that of the run would change the rates of its past.
        fraction = given.get("decay_fraction")
        given = {key: value for key, value in given.items() if key != "decay_fraction"}
    lr = _without_other_decay(to_plain(before.settings)["lr"], given)
    lr |= {key: value for key, value in given.items() if key not in _OF_A_RISE}
    own = {f"lr_{key}": given[key] for key in _OF_A_RISE if key in given}
    phases = [phases[0].model_copy(update={"lr": choices.lr, "optimizer": choices.optimizer}), *phases[1:]]
    rises = [number for number, entry in enumerate(phases) if entry.lr == "rewarm"]
    for number, stop in pairwise([*rises, len(phases)]):
        known, length = dict(own), sum(entry.steps or 0 for entry in phases[number:stop])
        if fraction is not None:
            known["lr_decay_steps"] = type(declared)(warmup_steps=0, decay_fraction=fraction).ramps(length)[1]
        if declared.warmup_steps is None:
            known = {"lr_warmup_steps": type(declared)(kind="constant").ramps(length)[0]} | known
        unset = {key: value for key, value in known.items() if getattr(phases[number], key) is None}
        phases[number] = phases[number].model_copy(update=unset)
    planned = stretch.planned_stop if choices.lr == "rewarm" and stretch.planned_stop > step else None
    past[-1] = past[-1].model_copy(update={"lr_planned_to": planned})
    if choices.lr == "keep":
        if rises:
            own = {key: value for key, value in own.items() if key == "lr_decay_steps"}
        if stretch.settings.warmup_steps is None:
            own = {"lr_warmup_steps": stretch.settings.ramps(stretch.num_steps)[0]} | own
        if begun is None:
            lr |= {key.removeprefix("lr_"): value for key, value in own.items()}
        else:
            if fraction is not None:
                length = sum(entry.steps or 0 for entry in [*past[begun:], *phases[: rises[0] if rises else None]])
                own["lr_decay_steps"] = type(declared)(warmup_steps=0, decay_fraction=fraction).ramps(length)[1]
            past[begun] = past[begun].model_copy(update=own)
    return lr, [*past, *phases]


def _moved(alone: DeclaredRun, before: DeclaredRun, manifest: CheckpointManifest) -> dict[str, str]:
    """The parent's place -> the tail's, for each corpus that the two find in different places."""
    there, here = (flat(snapshot(run.settings)) for run in (before, alone))
    ours, theirs = (
        {key: found for key, found in corpora.items() if not key.startswith("data.validation")}
        for corpora in (open_corpora(alone).hashes(), manifest.corpora)
    )
    named, places = {found: here[key] for key, found in ours.items()}, dict[str, set[str]]()
    for key, found in theirs.items():
        if key in there:
            places.setdefault(found, set()).add(there[key])
    # A corpus that the parent reads at two places counts as two, each with its own rows.
    return {
        place: named[found]
        for found, (place, *others) in places.items()
        if not others and named.get(found, place) != place
    }


def _placed(value: Any, moved: Mapping[str, str]) -> Any:
    """`[data]` with moved corpora at their new places."""
    if isinstance(value, dict):
        return {key: _placed(part, moved) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_placed(part, moved) for part in value]
    return moved.get(value, value) if isinstance(value, str) else value


def _without_other_decay(before: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The parent's `[lr]`, without its decay if the tail changes the kind, or `decay_steps` if it gives a fraction."""
    others: tuple[str, ...] = ("decay_steps",) if "decay_fraction" in given else ()
    if given.get("kind", before["kind"]) != before["kind"]:
        others = ("decay", "decay_steps", "decay_fraction", "floor")
    return {key: value for key, value in before.items() if key not in others}


def _past(before: DeclaredRun, step: int) -> list[PhaseSettings]:
    """The parent's phases up to the step."""
    entries = []
    for phase, entry in zip(before.plan.schedule.phases, before.settings.schedule, strict=True):
        if (steps := min(phase.stop, step) - phase.start) <= 0:
            break
        planned = phase.planned_steps if phase.planned_steps > steps else None
        entries.append(entry.of_steps(steps).model_copy(update={"planned_steps": planned}))
    return entries


def _notes(run: DeclaredRun, before: DeclaredRun, choices: TailSettings) -> list[str]:
    fork, plan = run.settings.fork, run.plan
    assert fork is not None
    step, total, position = fork.step, plan.schedule.total_steps, plan.position(fork.step)
    last, first = before.plan.learning_rate(step - 1), plan.learning_rate(step)
    kept = "kept" if choices.optimizer == "keep" else "reset"
    rows = "go on" if position else "are those of other data from the first on"
    return [
        f"from step {step:,} of {before.settings.run.dir} on: {counted(total - step, 'step')}, to step {total:,}",
        f"optimizer {kept}; rows {rows} (position {position:,})",
        f"learning rate {choices.lr}: {last:.3g} at step {step:,}, {first:.3g} at the next",
    ]
