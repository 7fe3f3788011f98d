"""Branches: a new run that leaves another one at a kept checkpoint, with another tail.

A branch's run.toml is that of a whole run, a fork of its parent: the parent's phases up to there, then the tail's, and
the tail's keys on top. The parent is read only.
"""

from bisect import bisect
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.checkpoint.read import open_unverified
from toolkit.core.errors import SettingsError
from toolkit.core.files import atomic_write
from toolkit.core.settings import Settings, explain
from toolkit.core.text import counted, quoted
from toolkit.objectives.phase_settings import PhaseSettings
from toolkit.run.checks import CHECKS
from toolkit.run.corpora import open_corpora
from toolkit.run.declared import DeclaredRun
from toolkit.run.folder import RunFolder
from toolkit.run.identity import saved_settings
from toolkit.run.load import complete_run, declare_settings, to_plain, to_toml
from toolkit.run.parting import Course, parting
from toolkit.run.start import Start
from toolkit.run.step_plan import changed_data
from toolkit.run.toml_files import apply_override, read_toml

# What a tail does not take from its parent.
_OWN = ("schedule", "fork")
_OF_A_RISE = {"lr_peak", "lr_warmup_steps", "lr_decay_steps"}


class TailSettings(Settings):
    """`[branch]` of a tail: what happens to optimizer and learning rate where the branch begins."""

    optimizer: Literal["keep", "reset"] = "keep"
    """Whether the optimizer's moments are kept, or start at zero."""
    lr: Literal["keep", "rewarm"] = "keep"
    """`keep`: the rate of one run of all steps; `rewarm`: warm-up, stable and decay over the tail alone."""


def make_branch(
    parent: Path, *, step: int, tail: Path, output: Path, overrides: Sequence[str] = ()
) -> tuple[Path, list[str]]:
    """Write the run file of a branch into the folder `output`; also says what it keeps and what starts over, in lines.

    The run leaves `parent` at `step`, which has a kept checkpoint. The file `tail` has `[[schedule]]` from that step
    on, what else changes, and `[branch]`; overrides, `a.b=value`, come on top.
    """
    manifest, checkpoint = _branch_point(parent, step)
    raw = read_toml(tail)
    for override in overrides:
        apply_override(raw, override)
    try:
        choices = TailSettings.model_validate(raw.pop("branch", {}))
    except ValidationError as error:
        raise SettingsError(f"{tail}: {explain(error, TailSettings, group='branch')}") from None
    before = declare_settings(saved_settings(manifest))
    _check_output(output, parent)
    model = {key: value for key, value in manifest.table("model").items() if value is not None}
    merged = _merged(to_plain(before.settings) | {"model": model}, raw, tail_file=tail, output=output)
    whole = _whole(merged, raw, before, step, choices=choices, origin=str(tail))
    # Where one warms up again, what was before need not fit the lengths of the tail.
    changed = ["lr"] if any(entry["lr"] == "rewarm" for entry in whole["schedule"]) else []
    whole["fork"] = {"from": str(checkpoint), "step": step, "changed": changed}
    run = _gone_on(complete_run(whole, [], origin=str(tail)), before, manifest)
    file = RunFolder(output).settings_file
    try:
        output.mkdir(parents=True, exist_ok=True)
        atomic_write(file, to_toml(run.settings))
    except OSError as error:
        raise SettingsError(f"could not write {file}: {error.strerror}. Give a folder that can be written.") from error
    return file, _notes(run, before, choices)


def _branch_point(parent: Path, step: int) -> tuple[CheckpointManifest, Path]:
    """The manifest and the folder of a checkpoint of the parent."""
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
    folder = RunFolder(output)
    if output.resolve() == parent.resolve():
        raise SettingsError(f"--output {output} is the run itself. Give the folder of a new run.")
    if output.resolve().is_relative_to(parent.resolve()):
        raise SettingsError(f"--output {output} is inside the run {parent}. Give a folder beside it.")
    if folder.settings_file.exists() or folder.steps():
        raise SettingsError(
            f"--output {output} holds a run already. Give the folder of a new run, or remove that one; to go on with "
            f"it: toolkit train {quoted(folder.settings_file)}."
        )


def _merged(parent: Mapping[str, Any], tail: Mapping[str, Any], *, tail_file: Path, output: Path) -> dict[str, Any]:
    """The parent's settings with the tail's keys on top."""
    if "schedule" not in tail:
        raise SettingsError(
            f"{tail_file}: a tail needs [[schedule]]: its phases from the branch point on, for example "
            'objective = "mlm", steps = 1000.'
        )
    if given := sorted({"init", "fork"} & tail.keys()):
        raise SettingsError(f"{tail_file}: a branch starts from its checkpoint. Leave [{given[0]}] out.")
    raw = {key: value for key, value in parent.items() if key not in _OWN}
    # The length is the tail's, and so is the place of copies: each run has its own.
    for table, own in (("train", "steps"), ("checkpoint", "copy_to")):
        raw[table] = {key: value for key, value in raw[table].items() if key != own}
    for key, value in tail.items():
        if not isinstance(value, Mapping) or not isinstance(raw.get(key), dict) or "preset" in value:
            raw[key] = value
        elif key == "objectives":
            raw[key] |= {name: _objective(raw[key].get(name), given) for name, given in value.items()}
        else:
            before = _without_other_decay(raw[key], value) if key == "lr" else raw[key]
            raw[key] = changed_data(before, value) if key == "data" else {**before, **value}
    run = raw["run"]
    if isinstance(tail.get("run"), Mapping) and tail["run"].get("dir", str(output)) != str(output):
        raise SettingsError(
            f"{tail_file}: run.dir={tail['run']['dir']!r}, and --output names {output}. Leave run.dir out."
        )
    if isinstance(run, dict):
        run["dir"] = str(output)
    return raw


def _objective(before: Any, given: Any) -> Any:
    """An objective of the parent with other settings; another kind has none in common."""
    if not isinstance(before, dict) or not isinstance(given, Mapping):
        return given
    if given.get("kind", before["kind"]) != before["kind"]:
        return given
    return {**before, **given}


def _without_other_decay(before: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`[lr]` of the parent without its decay, where the tail's schedule is of another kind, or gives its own length."""
    others: tuple[str, ...] = ("decay_steps",) if "decay_fraction" in given else ()
    if given.get("kind", before["kind"]) != before["kind"]:
        others = ("decay", "decay_steps", "decay_fraction", "floor")
    return {key: value for key, value in before.items() if key not in others}


def _whole(
    merged: dict[str, Any],
    tail: Mapping[str, Any],
    before: DeclaredRun,
    step: int,
    *,
    choices: TailSettings,
    origin: str,
) -> dict[str, Any]:
    """The whole run: phases that the parent had up to the step, and those of the tail with their lengths as steps."""
    # Mistakes of a tail are told by its own numbers of phases; its learning rate is that of the whole.
    alone = complete_run(deepcopy(merged) | {"lr": {"warmup_steps": 0, "decay_steps": 0}}, [], origin=origin)
    rate, declared = tail.get("lr"), to_plain(before.settings)
    past = _past(before, step, given=rate if isinstance(rate, Mapping) else {})
    scheduled = {entry.objective for phase in past for entry in phase.entries}
    names = {name: _old_name(name, merged, declared, step) for name in scheduled}
    past = [phase.renamed(names) for phase in past]
    # Data and rows of the run stay those of the steps before; the tail's are its phases' own.
    given = {key: value for key, value in tail.get("data", {}).items() if key != "validation"}
    before_rows, tail_rows = (group["train"]["global_batch_rows"] for group in (declared, merged))
    phases = []
    for phase, entry in zip(alone.plan.schedule.phases, alone.settings.schedule, strict=True):
        rows = entry.global_batch_rows or (tail_rows if tail_rows != before_rows else None)
        data = given | (entry.data or {})
        own = {key: value for key, value in data.items() if declared["data"].get(key) != value}
        update = {"global_batch_rows": rows, "data": own or None}
        phases.append(entry.of_steps(phase.stop - phase.start).model_copy(update=update))
    phases[0] = phases[0].model_copy(update={"lr": choices.lr, "optimizer": choices.optimizer})
    validation = {key: value for key, value in merged["data"].items() if key == "validation"}
    train = {key: value for key, value in merged["train"].items() if key != "steps"}
    return {key: value for key, value in merged.items() if key != "scheduler"} | {
        "data": declared["data"] | validation,
        "train": train | {"global_batch_rows": before_rows},
        "objectives": merged["objectives"]
        | {new: declared["objectives"][old] for old, new in names.items() if old != new},
        "schedule": [entry.model_dump(by_alias=True, exclude_none=True) for entry in (*past, *phases)],
    }


def _past(before: DeclaredRun, step: int, *, given: Mapping[str, Any]) -> list[PhaseSettings]:
    """The phases of the parent up to the step; keys of the learning rate that are given hold for its last stretch."""
    entries = []
    for phase, entry in zip(before.plan.schedule.phases, before.settings.schedule, strict=True):
        steps, rows = min(phase.stop, step) - phase.start, phase.rows
        if steps <= 0:
            break
        entry = entry.of_steps(steps).model_copy(update=dict.fromkeys({f"lr_{key}" for key in given} & _OF_A_RISE))
        if rows.warmup_steps <= steps:
            entries.append(entry)
            continue
        # A batch warm-up that was not over: a phase for each size, of which the first begins what the phase began.
        for start, stop in pairwise([0, *(end for end in rows.warmup_ends if end < steps), steps]):
            own = {"global_batch_rows": rows.at(start), "batch_warmup_rows": None, "batch_warmup_tokens": None}
            entries.append(entry.of_steps(stop - start).model_copy(update=own))
            entry = entry.model_copy(update={"lr": "keep", "optimizer": "keep", **dict.fromkeys(_OF_A_RISE)})
    return entries


def _old_name(name: str, merged: Mapping[str, Any], declared: Mapping[str, Any], step: int) -> str:
    """The name of an objective of the parent where the tail has another one of that name."""
    theirs, ours = (group["objectives"].get(name) for group in (declared, merged))
    return name if theirs is None or theirs == ours else f"{name}-to-{step}"


def _gone_on(run: DeclaredRun, before: DeclaredRun, manifest: CheckpointManifest) -> DeclaredRun:
    """The run after a look at the corpora: where rows and digest go on, and what is otherwise than in the parent."""
    fork, plan, step = run.settings.fork, run.plan, manifest.step
    assert fork is not None
    corpora, settings = open_corpora(run), run.settings
    for check in CHECKS.data:
        check(settings, corpora)
    there, here = Course(before, manifest.corpora), Course(run, corpora.hashes())
    read = {}
    for phase in before.plan.schedule.phases:
        if phase.start < step and settings.run.seed == before.settings.run.seed:
            order = repr([held.value for held in there.rows_of(phase.index).values()])
            read[order] = before.plan.rows_read(step, before.plan.data[phase.index])
    numbers = [phase.index for phase in plan.schedule.phases if phase.start >= step]
    orders = [repr([held.value for held in here.rows_of(number).values()]) for number in numbers]
    positions = tuple(read.get(order, 0) for order in orders)
    if positions == tuple(plan.rows_read(step, plan.data[number]) for number in numbers):
        positions = ()
    update = {"digest": "keep" if orders[0] in read else "reset", "positions": positions}
    run = declare_settings(settings.model_copy(update={"fork": fork.model_copy(update=update)}))
    changed = [*fork.changed]
    while (found := parting(there, replace(here, run=run), changed=changed)).step < step:
        changed += found.keys
    fork = fork.model_copy(update={**update, "changed": tuple(changed)})
    run = declare_settings(settings.model_copy(update={"fork": fork}))
    Start(initial=manifest).check(run, corpora)
    return run


def _notes(run: DeclaredRun, before: DeclaredRun, choices: TailSettings) -> list[str]:
    fork, plan = run.settings.fork, run.plan
    assert fork is not None
    step, total, position = fork.step, plan.schedule.total_steps, plan.position(fork.step)
    last, first = before.plan.learning_rate(step - 1), plan.learning_rate(step)
    kept = "kept" if choices.optimizer == "keep" else "reset"
    rows = "go on" if fork.digest == "keep" else "start over, as data or seed differ"
    later = (plan.rows_read(step, data) for data in plan.data[plan.schedule.phase_at(step).index :])
    if fork.digest == "reset" and any(later):
        rows = "start over, but for later phases on the trunk's data"
    return [
        f"from step {step:,} of {before.settings.run.dir} on: {counted(total - step, 'step')}, to step {total:,}",
        f"optimizer {kept}; rows and digest {rows} (position {position:,})",
        f"learning rate {choices.lr}: {last:.3g} at step {step:,}, {first:.3g} at the next",
    ]
