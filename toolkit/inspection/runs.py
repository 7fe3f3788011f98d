"""Human-readable views of run folders and checkpoints; readable in a plain log too.

Everything comes from files: run.toml, metrics.jsonl and the manifests of checkpoints. Nothing is trained, and a run
in progress is not disturbed.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.checkpoint.folders import half_removed
from toolkit.checkpoint.manifest import CheckpointManifest, LayoutEntry
from toolkit.checkpoint.read import open_unverified
from toolkit.core.console import columns, facts
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.core.text import counted, quoted
from toolkit.inspection.family import family_tree
from toolkit.model.config import ModelSettings
from toolkit.model.parameters import parameter_counts
from toolkit.objectives.schedule import Schedule
from toolkit.run.folder import RunFolder
from toolkit.run.identity import settings_in, snapshot
from toolkit.run.load import read_without_objectives
from toolkit.run.metrics import best_step, by_corpus, history, read_lines
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import StepPlan
from toolkit.run.switches import evaluated_run, switch_lines

if TYPE_CHECKING:
    from rich.table import Table
    from rich.tree import Tree

_MOST_TENSORS = 8
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def run_views(folder: RunFolder, against: RunFolder | None = None) -> Iterator["Table | Tree | str"]:
    """Tables of a run's settings and progress, its family, its losses by phase, and its checkpoints.

    Its switches of objective are compared with the single-objective run `against`.
    """
    if not folder.settings_file.is_file():
        raise SettingsError(
            f"{folder.settings_file}, which a run writes before its first step, does not exist. "
            f"Look at one of its checkpoints: toolkit inspect {quoted(folder.checkpoints)}/step-NNNNNNNN."
        )
    settings = read_without_objectives(folder.settings_file)
    plan, lines = StepPlan(settings), read_lines(folder)
    others = [] if against is None else [evaluated_run(against)]
    later = dict.fromkeys(name for phase in plan.schedule.phases[1:] for name in phase.objectives)
    if others and not any(map(others[0].has_only, later)):
        raise SettingsError(
            f"--against {others[0].name}: it is no run of one objective to which {folder.path} switches. Give one that "
            f"has nothing but {' or '.join(later) or 'that'}."
        )
    saved = folder.newest_step()
    step = max([line["step"] for line in lines[-1:]] + [saved, plan.first_step])
    yield _run_facts(folder, settings, plan, lines, step, saved=saved or None)
    if (family := family_tree(folder.path)) is not None:
        yield family
    lines, _ = history(folder, snapshot(settings))
    yield _phases(plan, lines, step)
    if any("eval_loss" in line for line in lines):
        yield _validation(plan.schedule, lines)
    if later and (switches := list(switch_lines(evaluated_run(folder), others))):
        yield "\n".join(switches)
    if folder.steps():
        yield _checkpoints(folder, settings)


def checkpoint_views(manifest: CheckpointManifest, place: object) -> Iterator["Table"]:
    """Tables of the checkpoint at `place`: its progress and model, and its tensors."""
    table = facts()
    table.add_row("checkpoint", str(place))
    table.add_row("step", f"{manifest.step:,}{'' if manifest.merged else _of_schedule(manifest)}")
    for parent in manifest.merged:
        table.add_row("merged from", f"{parent.path} (step {parent.step:,}), weight {parent.weight:.4g}")
    if manifest.first_weights:
        table.add_row("first weights", manifest.first_weights)
    if fork := manifest.settings.get("fork"):
        table.add_row("fork", f"of {fork['from']}, at step {fork['step']:,}")
    table.add_row("tokens", f"{manifest.tokens:,} without padding; next row is number {manifest.data_position:,}")
    if manifest.losses:
        table.add_row("last losses", ", ".join(f"{name} {loss:.4f}" for name, loss in manifest.losses.items()))
    if model := manifest.table("model"):
        table.add_row("model", _model_line(ModelSettings.model_validate(model)))
    ids = manifest.vocabulary
    mask = "no mask token" if ids.mask_id is None else f"mask token {ids.mask_id}"
    table.add_row("vocabulary", f"{ids.size:,} ids, {mask}, fingerprint {ids.fingerprint[:12]}")
    table.add_row("written by", f"toolkit {manifest.toolkit_version} on {_spread(manifest.layout)}")
    if kernels := manifest.kernels:
        table.add_row("computed by", f"attention {kernels['attention']}, {kernels['blocks']} blocks")
    num_bytes = sum(entry.bytes for entry in manifest.files.values())
    held = "weights and both moments" if manifest.has_moments else "weights, no optimizer's moments"
    table.add_row("files", f"{len(manifest.files):,}, {_size(num_bytes)}: {held}, fp32")
    yield table
    yield _tensors(manifest)


def _run_facts(
    folder: RunFolder,
    settings: RunSettings,
    plan: StepPlan,
    lines: Sequence[dict[str, Any]],
    step: int,
    *,
    saved: int | None,
) -> "Table":
    schedule = plan.schedule
    total, train, made = schedule.total_steps, settings.train, max(step - plan.first_step, 0)
    table = facts()
    table.add_row("run", str(folder.path))
    table.add_row("model", f"{_model_line(settings.model)}; {settings.precision}")
    if first := settings.first_weights:
        kept = "kept" if first.optimizer == "keep" else "new"
        where = "" if settings.fork is None else f", a fork at step {settings.fork.step:,}"
        table.add_row("first weights", f"{first.source}{where}; the optimizer was {kept}")
    data = settings.data
    entries = () if isinstance(data.train, str) else data.train
    listed = ", ".join(entry.path + (f" x {entry.weight:g}" if entry.weight else "") for entry in entries)
    named = listed + (f", temperature {data.weights.temperature:g}" if data.weights else "")
    table.add_row("data", f"{named or data.train}, rows of {data.sequence_length:,} ({data.windows})")
    if folders := data.validation_folders:
        table.add_row("validation", ", ".join(f"{name} {path}".strip() for name, path in folders.items()))
    rows = train.global_batch_rows
    table.add_row("step size", f"{rows:,} rows, {rows * data.sequence_length:,} positions")
    table.add_row("learning rate", plan.describe_learning_rate())
    # Steps after the newest checkpoint are lost if the process dies.
    safe = "" if step == saved or not made else "; no checkpoint yet" if saved is None else f"; saved up to {saved:,}"
    table.add_row(
        "stands at",
        f"step {step:,} of {total:,} ({made / (total - plan.first_step):.0%}){', finished' * (step == total)}{safe}",
    )
    trained = [line for line in lines if "loss" in line]
    if trained:
        last = trained[-1]
        mfu = f", MFU {last['mfu']:.1%}" if "mfu" in last else ""
        table.add_row("tokens", f"{last['tokens']:,} without padding, {last['tokens_per_second']:,.0f} a second{mfu}")
    sizes = [_folder_size(folder.checkpoints), _folder_size(folder.path)]
    left = half_removed(folder.checkpoints)
    table.add_row("on disk", f"{_size(sizes[1])}, of which checkpoints {_size(sizes[0])}{left and f'; {left}'}")
    return table


def _phases(plan: StepPlan, lines: Sequence[dict[str, Any]], step: int) -> "Table":
    table = columns("Phases: first and last logged loss", "phase", "objective", "steps", "state", "first", "last")
    for phase in plan.schedule.phases:
        losses = [line["loss"] for line in lines if phase.start < line["step"] <= phase.stop and "loss" in line]
        done = "done" if step >= phase.stop else "to come" if step <= phase.start else f"at {step:,}"
        ends = [f"{losses[0]:.4f}", f"{losses[-1]:.4f}"] if losses else ["-", "-"]
        name = f"{phase.shares}{plan.describe_changes(phase)}"
        table.add_row(f"{phase.index + 1}", name, f"{phase.start + 1:,} to {phase.stop:,}", done, *ends)
    return table


def _validation(schedule: Schedule, lines: Sequence[dict[str, Any]]) -> "Table":
    """The evaluation before training and the last one of each phase: a line each, plus one for each named corpus."""
    evaluated = [(line["step"], by_corpus(line["eval_loss"])) for line in lines if "eval_loss" in line]
    names = sorted({name for _, found in evaluated for losses in found.values() for name in losses})
    named = ["corpus"] if any(len(found) > 1 for _, found in evaluated) else []
    table = columns("Validation loss", "step", "after", *named, *names)
    chosen = {"before the first": [(step, found) for step, found in evaluated if step == 0]}
    for phase in schedule.phases:
        inside = [(step, found) for step, found in evaluated if phase.start < step <= phase.stop]
        chosen[f"phase {phase.index + 1}, {phase.objective}"] = inside[-1:]
    for when, last in chosen.items():
        for step, found in last:
            for corpus, losses in found.items():
                which = [corpus or "(all)"] if named else []
                shown = [f"{losses[name]:.4f}" if name in losses else "-" for name in names]
                table.add_row(f"{step:,}", when, *which, *shown)
    return table


def _checkpoints(run: RunFolder, settings: RunSettings) -> "Table":
    keep, best = settings.checkpoint, None
    with suppress(CheckpointError):
        if (newest := run.newest_manifest()) is not None:
            best = best_step(run, settings, newest.corpora)
    table = columns("Checkpoints, newest first", "step", "size", "written on", "stays")
    for number, (step, folder) in enumerate(run.steps()):
        stays = (
            "always"
            if keep.is_kept(step)
            else f"one of the newest {keep.keep}"
            if number < keep.keep
            else "until the next"
        )
        if best is not None and best.step == step:
            stays = f"the best: {settings.best_by} {best.loss:.4f}"
        try:
            checkpoint = open_unverified(folder)
            checkpoint.check_sizes()
        except CheckpointError as error:
            damage = str(error).replace(f"{folder}/", "")
            table.add_row(f"{step:,}", _size(_folder_size(folder)), damage, "")
            continue
        stays += "" if checkpoint.manifest.has_moments else ", weights alone"
        table.add_row(f"{step:,}", _size(_folder_size(folder)), _spread(checkpoint.manifest.layout), stays)
    return table


def _tensors(manifest: CheckpointManifest) -> "Table":
    rows = [(name, " x ".join(f"{size:,}" for size in entry.shape)) for name, entry in manifest.tensors.items()]
    table, half = columns(f"{len(rows):,} tensors", "name", "shape"), _MOST_TENSORS // 2
    if (num_more := len(rows) - _MOST_TENSORS) > 0:
        rows[half:-half] = [(f"... {num_more:,} more", "")]
    for row in rows:
        table.add_row(*row)
    return table


def _of_schedule(manifest: CheckpointManifest) -> str:
    """Phrase on total steps and what comes next; empty without a schedule, as in an imported checkpoint."""
    try:
        plan = StepPlan(settings_in(manifest))
    except (CheckpointError, SettingsError):
        return ""
    schedule, total = plan.schedule, plan.schedule.total_steps
    if manifest.step >= total:
        return f" of {total:,}: the end of the schedule"
    phase = schedule.phase_at(manifest.step)
    where = f"next is {phase.objective}, phase {phase.index + 1} of {len(schedule.phases)} (to step {phase.stop:,})"
    return f" of {total:,}; {where} at learning rate {plan.learning_rate(manifest.step):.3g}"


def _model_line(model: ModelSettings) -> str:
    heads = f"{model.num_attention_heads} / {model.key_value_heads} heads"
    shape = f"{model.num_hidden_layers} layers of width {model.hidden_size:,}, {heads}, feed-forward "
    shape += f"{model.intermediate_size:,}"
    if model.narrowest_window is not None:
        num_full = model.layer_types.count("full_attention")
        where = f"but in {num_full} of {model.num_hidden_layers} layers" if num_full else "in all layers"
        shape = f"{model.family}, {shape}, windows of {model.local_attention} {where}"
    if model.vocab_size is None:
        return shape
    counts = parameter_counts(model)
    return f"{shape}; {counts.total:,} parameters, {counts.body_and_embedding:,} without the head"


def _spread(layout: LayoutEntry) -> str:
    degrees = "".join(f", {name} {degree}" for name, degree in (("tp", layout.tp), ("pp", layout.pp)) if degree > 1)
    return f"{counted(layout.world_size, 'rank')}, ZeRO {layout.zero_stage}{degrees}"


def _folder_size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*") if folder.is_dir() else ():
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except OSError:
            # A run in progress may remove checkpoints meanwhile.
            continue
    return total


def _size(num_bytes: float) -> str:
    for unit in _UNITS:
        if num_bytes < 1000 or unit == _UNITS[-1]:
            break
        num_bytes /= 1000
    return f"{num_bytes:.3g} {unit}"
