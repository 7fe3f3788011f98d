"""Differences between models: axes of a block and what their values change, labels, and names."""

import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.core.settings import nearest
from toolkit.experiments.grid.declaration import Label
from toolkit.experiments.study.declaration import PUBLISHED, Study
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.identity import is_free
from toolkit.run.settings import RunSettings

_NAME = re.compile(r"\w[\w.+-]{0,199}")
# Labels of an axis in reports; other axes use their key.
_LABELS_OF_AXES = {
    "schedule": ("clm_share", "budget_steps"),
    "run.seed": ("seed",),
    "objectives.mlm.mask_ratio": ("mask_ratio",),
    "model.preset": ("size",),
}
_OF_RUN_FILES = frozenset(RunSettings.model_fields) | {"scheduler"}


@dataclass(frozen=True)
class Choice:
    """A value of an axis: its changes to a run file, and its label."""

    axis: str
    label: Label
    changes: Mapping[str, Any]


def axes_of(axes: Mapping[str, Any]) -> Iterator[list[Choice]]:
    """The values of each axis: those of a key of the run file, or named fragments of a run file."""
    for name, given in axes.items():
        if name in _OF_RUN_FILES:
            yield from _axes_of_keys((name,), given)
        elif isinstance(given, dict) and given and all(isinstance(part, dict) for part in given.values()):
            yield [Choice(name, label, changes) for label, changes in given.items()]
        else:
            raise SettingsError(
                f"axes.{name}: expected a table of a run file, with lists of values, or an axis with tables, such as "
                f"axes.{name}.small = {{ model.preset = '210m' }}."
                f"{nearest(name, _OF_RUN_FILES)}"
            )


def _axes_of_keys(path: tuple[str, ...], given: Any) -> Iterator[list[Choice]]:
    axis = ".".join(path)
    if isinstance(given, dict) and given:
        for key, below in given.items():
            yield from _axes_of_keys((*path, key), below)
        return
    if not isinstance(given, list) or not given:
        raise SettingsError(f"axes.{axis}: expected a list of values, got {given!r}.")
    # Validation data are part of a run's identity, but no step reads them.
    if is_free(axis) or axis.startswith("data.validation"):
        raise SettingsError(
            f"axes.{axis}: a run may be resumed with another value, so it makes no model of its own. Give it in [set]."
        )
    yield [
        Choice(axis, value if isinstance(value, str | int | float | bool) else str(value), _nested(path, value))
        for value in given
    ]


def axis_labels(study: Study) -> tuple[str, ...]:
    """Labels in which models differ along the study's axes; for a schedule, its share of CLM and its length."""
    axes = [choices[0].axis for block in study.models for choices in axes_of(block.axes)]
    names = [name for axis in axes for name in _LABELS_OF_AXES.get(axis, (axis.replace(".", "_"),))]
    starts = ["start"] if any(block.sources for block in study.models) else []
    steps = ["training_step", "training_flops"] if study.study.keep or any(block.keep for block in study.models) else []
    return tuple(dict.fromkeys([*names, *starts, *steps]))


def labels_of_choices(choices: Iterable[Choice]) -> dict[str, Label]:
    """Labels from the chosen axis values."""
    given = {choice.axis: choice.label for choice in choices if choice.axis != "schedule"}
    return {_LABELS_OF_AXES.get(axis, (axis.replace(".", "_"),))[0]: label for axis, label in given.items()}


def _nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)


def labels_of(run: DeclaredRun, *, size: str) -> dict[str, Label]:
    """Labels from a run's settings: size, objectives, share of CLM, budget, seed, mask ratio if there is just one."""
    steps, names = dict[str, float](), dict[str, None]()
    ratios = dict[Label, None]()
    for phase in run.plan.schedule.phases:
        for entry in phase.mix:
            declared = run.settings.objectives[entry.objective]
            made = (phase.stop - phase.start) * phase.mean_share(entry)
            steps[declared.kind] = steps.get(declared.kind, 0) + made
            if (ratio := getattr(declared.settings, "mask_ratio", None)) is not None:
                ratios[ratio if isinstance(ratio, float) else str(ratio)] = None
        names[".".join(run.settings.objectives[name].kind for name in phase.objectives)] = None
    total = run.plan.schedule.total_steps
    labels: dict[str, Label] = {
        "size": size,
        "objective": "+".join(names),
        "clm_share": round(steps.get("clm", 0) / total, 6),
        "budget_steps": total,
        "seed": run.settings.run.seed,
    }
    if len(ratios) == 1:
        labels["mask_ratio"] = next(iter(ratios))
    return labels


def published_name(run: DeclaredRun, *, size: str) -> str:
    """A name in the style of the paper's authors: `610m-clm-10k-mlm40-42k`, `610m-clm-dec42k-mlm40-64k`.

    The size, then for each phase its objective, MLM with its ratio in percent, and the steps so far; `dec` before them
    if the learning rate has decayed by then and the run goes on.
    """
    plan, name = run.plan, size
    total = plan.schedule.total_steps
    decayed = {stretch.stop for stretch in plan.stretches if stretch.settings.ramps(stretch.num_steps)[1]}
    for phase in plan.schedule.phases:
        declared = [run.settings.objectives[objective] for objective in phase.objectives]
        kinds = [f"{one.kind}{_in_percent(getattr(one.settings, 'mask_ratio', None))}" for one in declared]
        before = "dec" if phase.stop in decayed and phase.stop < total else ""
        stop = f"{phase.stop // 1000}k" if phase.stop % 1000 == 0 else phase.stop
        name += f"-{'+'.join(kinds)}-{before}{stop}"
    return name


def model_name(template: str, labels: Mapping[str, Label], run: DeclaredRun, *, size: str) -> str:
    """The name of a model, valid as a folder name."""
    name = published_name(run, size=size) if template == PUBLISHED else _filled(template, labels)
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"study.names={template!r} makes {name!r}, which cannot be the name of a folder. Use up to 200 letters, "
            "digits, and _ . + - after the first."
        )
    return name


def _filled(template: str, labels: Mapping[str, Label]) -> str:
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
        if unknown := [field for field in fields if field not in labels]:
            raise SettingsError(
                f"study.names={template!r}: no model has a label {unknown[0]!r}.{nearest(unknown[0], labels)} "
                f"Labels here: {', '.join(labels)}."
            )
        return template.format_map(labels)
    except (ValueError, LookupError, MemoryError) as error:
        raise SettingsError(
            f"study.names={template!r} is no template: {error}. Write {{label}}, or published."
        ) from None


def _in_percent(ratio: Any) -> str:
    """A mask ratio in percent, both ends for a ramp; empty if the objective has none."""
    if ratio is None:
        return ""
    return f"{100 * ratio:g}" if isinstance(ratio, float) else f"{100 * ratio.start:g}to{100 * ratio.stop:g}"
