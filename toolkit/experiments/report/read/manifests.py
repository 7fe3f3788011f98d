"""Labels of models that are checkpoints of this toolkit: budget, objectives, tokens and FLOPs, from their manifests.

A manifest covers its own run and the runs that it continues. If the first of these started from other weights, `start`
names them, all counts begin there, and there is no `clm_share`: how the weights were trained before is in another
manifest, if in any.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolkit.checkpoint.folders import CHECKPOINTS_FOLDER, holds_checkpoints
from toolkit.checkpoint.manifest import FIRST_WEIGHTS, MANIFEST_NAME, CheckpointManifest, read_manifest
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.core.text import first_few
from toolkit.experiments.grid.declaration import Label
from toolkit.experiments.grid.folder import ModelInfo
from toolkit.experiments.report.read.labels import (
    BUDGET,
    CLM_SHARE,
    FLOPS,
    MASK_RATIO,
    OBJECTIVE,
    PARAMETERS,
    SEED,
    START,
    STEP,
    TOKENS,
)
from toolkit.experiments.report.read.results import Results
from toolkit.model import ModelSettings, parameter_counts
from toolkit.objectives.ramps import MaskRatioRamp
from toolkit.run.folder import RunFolder
from toolkit.run.identity import kind_of, settings_in
from toolkit.run.metrics import history
from toolkit.run.step_plan import schedule_of


def with_manifest_labels(results: Results) -> Results:
    """The results with labels from the models' manifests added; labels in a grid file take precedence."""
    return replace(results, models=tuple(_labelled(model) for model in results.models))


def other_corpora(results: Results) -> str:
    """Sentence on models that were trained on different corpora, with the corpora's hashes; empty if there are none."""
    trained = dict[frozenset[str], list[str]]()
    for model in results.models:
        manifest, _ = _manifest_of(model) or (None, None)
        if manifest is not None and manifest.corpora:
            no_data = (FIRST_WEIGHTS, "data.validation")
            hashes = {found[:12] for key, found in manifest.corpora.items() if not key.startswith(no_data)}
            trained.setdefault(frozenset(hashes), []).append(model.name)
    named = [f"{first_few(names)} ({', '.join(sorted(hashes))})" for hashes, names in trained.items()]
    return f"the models were trained on different corpora: {'; '.join(named)}" if len(named) > 1 else ""


def _labelled(model: ModelInfo) -> ModelInfo:
    if (found := _manifest_of(model)) is None:
        return model
    manifest, folder = found
    return ModelInfo(model.name, model.path, {**manifest_labels(manifest, folder), **(model.labels or {})})


def _manifest_of(model: ModelInfo) -> tuple[CheckpointManifest, RunFolder] | None:
    """Manifest and run folder of a model that is a checkpoint or a run; None for any other model."""
    if model.path is None or not holds_checkpoints(path := Path(model.path)):
        return None
    try:
        if (path / MANIFEST_NAME).is_file():
            return read_manifest(path), RunFolder(path.parent.parent)
        folder = RunFolder(path.parent if path.name == CHECKPOINTS_FOLDER else path)
        manifest = folder.newest_manifest()
    except (CheckpointError, OSError):
        return None
    return None if manifest is None else (manifest, folder)


def manifest_labels(manifest: CheckpointManifest, folder: RunFolder) -> dict[str, Label]:
    """Labels of a checkpoint, without those that its settings and its run's metrics do not provide."""
    labels: dict[str, Label] = {}
    settings = manifest.settings
    # An imported model that was not trained here would look like an untrained one.
    if manifest.step or not manifest.origin:
        labels |= {STEP: manifest.step, TOKENS: manifest.tokens}
    # Otherwise a merge would look like its last checkpoint.
    if manifest.merged:
        labels["merged"] = len(manifest.merged)
    if start := start_of(manifest):
        labels[START] = start
    seed = settings.get("run", {}).get("seed")
    if isinstance(seed, int):
        labels[SEED] = seed
    with suppress(ValidationError, KeyError, TypeError):
        labels[PARAMETERS] = parameter_counts(ModelSettings.model_validate(settings["model"])).total
    labels |= _schedule_labels(manifest)
    lines, is_whole = history(folder, settings)
    # Otherwise steps of the previous run would be counted at this run's rate.
    if is_whole and (flops := flops_up_to(lines, manifest.step)) is not None:
        labels[FLOPS] = flops
    return labels


def start_of(manifest: CheckpointManifest) -> str:
    """What a run started from: "random", "clm-42k step 42000" (another run's checkpoint), or the name of a model."""
    origin = manifest.origin
    if "run" in origin:
        merged = f"{origin['merged']} merged up to " if "merged" in origin else ""
        return f"{merged}{origin['run']} step {origin.get('step', '?')}"
    return origin.get("model", "") if origin else "random"


def _schedule_labels(manifest: CheckpointManifest) -> dict[str, Label]:
    try:
        settings = settings_in(manifest)
        schedule = schedule_of(settings)
    except (CheckpointError, SettingsError):
        return {}
    declared: Mapping[str, Any] = manifest.settings.get("objectives", {})
    done, scheduled, clm = dict[str, None](), set[str](), 0.0
    for phase in schedule.phases:
        steps = min(phase.stop, manifest.step) - phase.start
        if steps > 0:
            kinds = [kind_of(manifest, name) for name in phase.objectives]
            done[".".join(kinds)] = None
            scheduled.update(phase.objectives)
            shares = [phase.mean_share(part, stop=manifest.step) for part in phase.mix]
            clm += sum(steps * share for share, kind in zip(shares, kinds, strict=True) if kind == "clm")
    labels: dict[str, Label] = {}
    if done:
        labels[OBJECTIVE] = "+".join(done)
        if not manifest.origin:
            labels[CLM_SHARE] = round(clm / min(manifest.step, schedule.total_steps), 6)
    ratios = {_mask_ratio(declared.get(name, {}).get(MASK_RATIO)) for name in scheduled} - {None}
    if len(ratios) == 1 and (ratio := ratios.pop()) is not None:
        labels[MASK_RATIO] = ratio
    if manifest.step == schedule.total_steps:
        labels[BUDGET] = manifest.step
    return labels


def _mask_ratio(saved: object) -> Label | None:
    """A mask ratio as a label: a number, or "0.4 to 0.15" for a ramp; None if absent."""
    if isinstance(saved, float):
        return saved
    try:
        return str(MaskRatioRamp.model_validate(saved))
    except ValidationError:
        return None


def flops_up_to(lines: Sequence[Mapping[str, Any]], step: int) -> float | None:
    """Model FLOPs of a run up to a step, from its metrics; None if these do not reach the step or lack the rates.

    The rates of a line are means since the previous line, so their quotient times the tokens in between is exact.
    """
    total, tokens, reached = 0.0, 0, 0
    for line in lines:
        if "loss" not in line or line["step"] > step:
            continue
        try:
            rate = line["model_flops_per_second"] / line["tokens_per_second"]
            total += (line["tokens"] - tokens) * rate
            tokens, reached = line["tokens"], line["step"]
        except (KeyError, TypeError, ZeroDivisionError):
            return None
    return total if reached == step and step > 0 else None
