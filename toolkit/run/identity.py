"""Identity of a run: the settings and corpora that may not change when it is resumed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.core.settings import explain
from toolkit.model.config import ModelSettings
from toolkit.model.growth import GROWING, Growth, shape_in_words
from toolkit.objectives.registry import declare
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import schedule_of

ROPE = ("rope_", "local_rope_")
"""Prefixes of the keys of `[model]` for rotary embeddings."""
# Keys that no weight depends on.
_FREE_IN_MODEL = ("initializer_range", "max_position_embeddings", *ROPE)
_FREE = (
    *("parallel.", "train.micro_batch_rows", "train.compile", "checkpoint.", "log.", "eval.", "data.validation"),
    *("run.dir", "run.cache_gb"),
    # A run that a spike has stopped gets past it with another value.
    *("train.on_spike", "train.spike_deviations", "train.attention_kernel", "train.activation_checkpointing"),
    # Only declared by exports; rows may be longer.
    "model.max_position_embeddings",
    # The fork point no longer matters to a run that has steps of its own.
    *("fork.from", "fork.step"),
)


def snapshot(settings: RunSettings) -> dict[str, Any]:
    """The settings as plain data, for the checkpoint's manifest."""
    return settings.model_dump(mode="json", by_alias=True)


def is_free(key: str) -> bool:
    """Return whether no weight depends on a setting, so that a resumed run may have another value."""
    return key.startswith(_FREE)


def check_resumable(manifest: CheckpointManifest, settings: RunSettings) -> None:
    """Refuse to resume a run from a checkpoint without optimizer moments."""
    if not manifest.has_moments:
        raise CheckpointError(
            f"step {manifest.step:,} in {settings.run.dir} has no optimizer state, so the run cannot be resumed from "
            "it.\nMove it elsewhere; init.from starts a new run from it."
        )


def check_same_model(settings: RunSettings, manifest: CheckpointManifest) -> None:
    """Refuse to start a model from weights of another shape, or to keep moments that the checkpoint does not have."""
    first = settings.first_weights
    assert first is not None
    if first.optimizer == "keep" and not manifest.has_moments:
        asked = "a fork goes on with the optimizer" if settings.fork else 'init.optimizer="keep"'
        found = "a run's weights alone" if "run" in manifest.settings else "an imported model"
        found = "a merge of checkpoints" if manifest.merged else found
        remedy = "A new run may start from them: init.from." if settings.fork else 'Set init.optimizer = "reset".'
        raise SettingsError(f"{asked}, but {first.source} has no optimizer state: it is {found}.\n{remedy}")
    changed = _model_differences(settings, manifest)
    growing = () if first.grow is None else _check_growth(settings, manifest)
    if fixed := [line for key, line in changed.items() if not key.startswith((*_FREE_IN_MODEL, *growing))]:
        remedy = (
            f"Leave [model] out to take the shape from {first.key}." if settings.fork is None else "Make them equal."
        )
        lines = "\n  ".join(fixed)
        raise SettingsError(f"the model at {first.key} ({first.source}) differs from [model]:\n  {lines}\n{remedy}")


def growth_of(settings: RunSettings, manifest: CheckpointManifest) -> Growth:
    """Growth from the model of a checkpoint to that of a run."""
    return Growth(ModelSettings.model_validate(manifest.table("model")), settings.model)


def _check_growth(settings: RunSettings, manifest: CheckpointManifest) -> tuple[str, ...]:
    """Keys of `[model]` that may differ when a model is grown; refuses a model that cannot be grown."""
    growth, first = growth_of(settings, manifest), settings.first_weights
    if problem := growth.problem():
        assert first is not None
        raise SettingsError(
            f'init.grow="{first.grow}" cannot make [model] from {first.key} ({first.source}): {problem}.\n'
            f"  there: {shape_in_words(growth.small)}\n  here:  {shape_in_words(growth.large)}\n"
            "Make no size smaller, and keep the width of a head."
        )
    # The width of a head is the same, whether given by this key or not.
    return (*GROWING, "head_dim")


def rope_differences(settings: RunSettings, manifest: CheckpointManifest) -> list[str]:
    """Lines on rotary keys of `[model]` that differ from those of the first weights, as for a longer context."""
    return [line for key, line in _model_differences(settings, manifest).items() if key.startswith(ROPE)]


def _model_differences(settings: RunSettings, manifest: CheckpointManifest) -> dict[str, str]:
    """Keys of `[model]` that differ from a checkpoint's, with both values."""
    # A key missing from a manifest has its default there.
    defaults = {key: field.default for key, field in ModelSettings.model_fields.items() if not field.is_required()}
    theirs, ours = flat(defaults | manifest.table("model")), flat(settings.model.model_dump(mode="json"))
    # The keys of rope_scaling exist only if it is set.
    keys = theirs.keys() | {key for key in ours if key.startswith(ROPE)}
    return {
        key: f"model.{key}: there {theirs.get(key)!r}, here {ours.get(key)!r}"
        for key in sorted(keys)
        if theirs.get(key) != ours.get(key)
    }


def saved_settings(manifest: CheckpointManifest) -> RunSettings:
    """The settings of the run that wrote a checkpoint, with objectives, which may need a plugin."""
    with _set_up(manifest):
        return from_snapshot(manifest.settings)


def settings_in(manifest: CheckpointManifest) -> RunSettings:
    """The settings of the run that wrote a checkpoint, without objectives."""
    with _set_up(manifest):
        return RunSettings.model_validate(manifest.settings | {"objectives": {}})


def last_kinds(manifest: CheckpointManifest) -> frozenset[str]:
    """Kinds of the objectives of a checkpoint's last update; empty if its manifest does not name them."""
    try:
        schedule = schedule_of(settings_in(manifest))
    except (CheckpointError, SettingsError):
        return frozenset()
    if not manifest.step:
        return frozenset()
    phase = schedule.phase_at(min(manifest.step, schedule.total_steps) - 1)
    return frozenset(kind_of(manifest, name) for name in phase.objectives)


def kind_of(manifest: CheckpointManifest, name: str) -> str:
    """The kind of an objective, by its name in the run that wrote a checkpoint."""
    return str(manifest.settings.get("objectives", {}).get(name, {}).get("kind", name))


@contextmanager
def _set_up(manifest: CheckpointManifest) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise CheckpointError(
            f"the checkpoint of step {manifest.step:,} does not say how its run was set up, as those of an imported "
            f"model do not: {explain(error, RunSettings)}"
        ) from None


def from_snapshot(saved: Mapping[str, Any]) -> RunSettings:
    """The settings from their `snapshot`; a ValidationError for any other data."""
    objectives = {name: declare(name, given) for name, given in saved.get("objectives", {}).items()}
    return RunSettings.model_validate({**saved, "objectives": objectives})


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Settings as plain data by dotted keys, such as `lr.peak`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return {prefix.removesuffix("."): value}
    return {key: leaf for name, part in items for key, leaf in flat(part, f"{prefix}{name}.").items()}
