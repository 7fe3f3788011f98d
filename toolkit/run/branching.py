"""Branches: a new run that leaves another one at a kept checkpoint, with another tail.

A branch's run.toml is that of its parent with the tail's keys on top; its table `[branch]` says where it begins. The
parent is read only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.checkpoint.read import open_unverified
from toolkit.core.errors import SettingsError
from toolkit.core.files import atomic_write
from toolkit.core.settings import Settings, explain
from toolkit.core.text import counted, quoted
from toolkit.run.corpora import open_corpora
from toolkit.run.declared import DeclaredRun
from toolkit.run.folder import RunFolder
from toolkit.run.load import complete_run, declare_settings, settings_in, to_toml
from toolkit.run.settings import PastPhase
from toolkit.run.start import Start
from toolkit.run.toml_files import apply_override, read_toml

# What a tail never takes from its parent: each is about one run.
_OWN = ("schedule", "init", "branch")
_NEAREST = 2


class TailSettings(Settings):
    """`[branch]` of a tail: what happens to optimizer and learning rate where the branch begins."""

    optimizer: Literal["keep", "reset"] = "keep"
    """Moments of the optimizer: kept, or zero."""
    lr: Literal["keep", "rewarm"] = "keep"
    """`keep`: the rate of one run of all steps; `rewarm`: warm-up, stable and decay over the tail alone."""


@dataclass(frozen=True)
class Branch:
    """A branch as it was written, with a line on each thing that it keeps or starts over."""

    settings_file: Path
    notes: tuple[str, ...]


def make_branch(parent: Path, *, step: int, tail: Path, output: Path, overrides: Sequence[str] = ()) -> Branch:
    """Write the run file of a branch into the folder `output`.

    The run leaves `parent` at `step`, which has a kept checkpoint. The file `tail` has `[[schedule]]` from that step
    on, what else changes, and `[branch]`; overrides, `a.b=value`, come on top.
    """
    manifest, checkpoint = _branch_point(parent, step)
    raw = read_toml(tail)
    for override in overrides:
        apply_override(raw, override)
    choices = _choices(raw, tail)
    before = declare_settings(settings_in(manifest))
    _check_output(output, parent)
    merged = _merged(manifest.settings | {"model": manifest.table("model")}, raw, tail_file=tail, output=output)
    merged["branch"] = _table(manifest, checkpoint, before, choices)
    if choices.lr == "keep":
        merged["branch"] |= _ramp(before, manifest.step, raw.get("lr"))
    run = _with_data(complete_run(merged, [], origin=str(tail)), before, manifest)
    file = RunFolder(output).settings_file
    try:
        output.mkdir(parents=True, exist_ok=True)
        atomic_write(file, to_toml(run.settings))
    except OSError as error:
        raise SettingsError(f"could not write {file}: {error.strerror}. Give a folder that can be written.") from error
    return Branch(file, tuple(_notes(run, before, choices)))


def _branch_point(parent: Path, step: int) -> tuple[CheckpointManifest, Path]:
    folder = RunFolder(parent)
    kept = sorted(number for number, _ in folder.steps())
    if not kept:
        what = "has no checkpoint" if parent.is_dir() else "is not a directory"
        raise SettingsError(f"{parent} {what}. Give the folder of a run that has saved one.")
    if step not in kept:
        near = sorted([number for number in kept if number < step][-_NEAREST // 2 :] + _after(kept, step))
        raise SettingsError(
            f"step {step:,} of {parent} is not a kept checkpoint; the nearest kept ones are "
            f"{', '.join(str(number) for number in near)}.\n"
            "Give one of the kept steps; checkpoint.keep_every=N in a run's file keeps every multiple of N."
        )
    path = folder.checkpoint(step)
    checkpoint = open_unverified(path)
    checkpoint.check_sizes()
    return checkpoint.manifest, path


def _after(kept: list[int], step: int) -> list[int]:
    return [number for number in kept if number > step][: _NEAREST // 2]


def _choices(raw: dict[str, Any], tail: Path) -> TailSettings:
    try:
        return TailSettings.model_validate(raw.pop("branch", {}))
    except ValidationError as error:
        raise SettingsError(f"{tail}: {explain(error, TailSettings, group='branch')}") from None


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
    if "init" in tail:
        raise SettingsError(f"{tail_file}: a branch starts from its checkpoint. Leave [init] out.")
    raw = {key: _without_nothing(value) for key, value in parent.items() if key not in _OWN and value is not None}
    raw["train"] = {key: value for key, value in raw["train"].items() if key != "steps"}
    for key, value in tail.items():
        if not isinstance(value, Mapping) or not isinstance(raw.get(key), dict) or "preset" in value:
            raw[key] = value
        elif key == "objectives":
            raw[key] |= {name: _objective(raw[key].get(name), given) for name, given in value.items()}
        else:
            before = _without_other_decay(raw[key], value) if key == "lr" else raw[key]
            raw[key] = {**before, **value}
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


def _without_nothing(value: Any) -> Any:
    return {key: part for key, part in value.items() if part is not None} if isinstance(value, dict) else value


def _ramp(before: DeclaredRun, step: int, given: Any) -> dict[str, Any]:
    """The warm-up that goes on, for `[branch]`: a phase of the parent may have had one, and a peak, of its own.

    That peak is not `lr.peak`, which later phases of the tail warm up to; one that the tail gives holds for both.
    """
    stretch = next(stretch for stretch in before.plan.stretches if step <= stretch.stop)
    peak = stretch.settings.peak
    is_own = peak != before.settings.lr.peak and not (isinstance(given, dict) and "peak" in given)
    return {"ramp_start": stretch.start, "ramp_peak": peak if is_own else None}


def _table(
    manifest: CheckpointManifest, checkpoint: Path, before: DeclaredRun, choices: TailSettings
) -> dict[str, Any]:
    """`[branch]` of the new run, but for what depends on its data, and with a warm-up of its own."""
    parent = before.settings.branch
    past = list(parent.past) if parent else []
    kinds = manifest.settings.get("objectives", {})
    for phase in before.plan.schedule.phases:
        steps = min(phase.stop, manifest.step) - phase.start
        if steps > 0:
            kind = kinds.get(phase.objective, {}).get("kind", phase.objective)
            past.append(PastPhase(objective=kind, steps=steps))
    return {
        "from": str(checkpoint),
        "step": manifest.step,
        "optimizer": choices.optimizer,
        "ramp_start": manifest.step,
        "past": past,
    }


def _with_data(run: DeclaredRun, before: DeclaredRun, manifest: CheckpointManifest) -> DeclaredRun:
    """The run, after a look at the corpora: order and digest go on where the parent has read such rows."""
    settings, plan, own = run.settings, before.plan, run.plan
    corpora = open_corpora(run)
    last = plan.schedule.phase_at(manifest.step - 1).index
    orders = [_order(before, number, manifest.corpora) for number in range(len(plan.data))]
    wanted = [_order(run, number, corpora.hashes()) for number in range(len(own.data))]
    same = [number for number in range(last + 1) if orders[number] == wanted[0]]
    assert settings.branch is not None
    where: dict[str, Any] = {"data": "reset"}
    if same:
        where = {"data": "keep", "position": plan.rows_read(manifest.step, plan.data[same[-1]])}
    if any(data != own.data[0] for data in own.data):
        where["later_positions"] = tuple(
            plan.rows_read(manifest.step, plan.data[orders.index(order)]) if order in orders else 0
            for order in wanted[1:]
        )
    branch = settings.branch.model_copy(update=where)
    run = declare_settings(settings.model_copy(update={"branch": branch}))
    Start(initial=manifest).check(run, corpora)
    return run


def _order(run: DeclaredRun, number: int, hashes: Mapping[str, str]) -> tuple[Any, ...]:
    """Key of the order in which the rows of a phase's data come."""
    settings, phases = run.settings, run.plan.data
    # A checkpoint names the corpora of equal data once, by the first phase that has them.
    first = phases.index(phases[number])
    data, entry = phases[first], settings.schedule[first]
    weights = None if isinstance(data.train, str) else [part.weight for part in data.train]
    key = f"schedule.{first}.data.train" if "train" in (entry.data or {}) else "data.train"
    corpora = [hashes[name] for name in sorted(hashes) if name == key or name.startswith(f"{key}.")]
    return settings.run.seed, weights, corpora, data.model_dump(exclude={"train", "validation"})


def _notes(run: DeclaredRun, before: DeclaredRun, choices: TailSettings) -> list[str]:
    branch, schedule = run.settings.branch, run.plan.schedule
    assert branch is not None
    last, first = before.plan.learning_rate(branch.step - 1), run.plan.learning_rate(branch.step)
    kept = "kept" if branch.optimizer == "keep" else "reset"
    rows = "go on" if branch.data == "keep" else "start over, as data or seed differ"
    if branch.data == "reset" and any(branch.later_positions):
        rows = "start over, but for later phases on the trunk's data"
    return [
        f"from step {branch.step:,} of {before.settings.run.dir} on: {counted(schedule.num_steps, 'step')}, to step "
        f"{schedule.total_steps:,}",
        f"optimizer {kept}; rows and digest {rows} (position {branch.position:,})",
        f"learning rate {choices.lr}: {last:.3g} at step {branch.step:,}, {first:.3g} at the next",
    ]
