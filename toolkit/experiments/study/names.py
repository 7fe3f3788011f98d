"""Names of models, and the labels that their settings tell."""

import re
import string
from collections.abc import Mapping
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.core.settings import nearest
from toolkit.experiments.grid.declaration import Label
from toolkit.experiments.study.declaration import PUBLISHED
from toolkit.run.declared import DeclaredRun

_NAME = re.compile(r"\w[\w.+-]{0,199}")


def labels_of(run: DeclaredRun, *, size: str) -> dict[str, Label]:
    """Labels that a run's settings tell: size, objectives, share of CLM, budget, seed, mask ratio if there is one."""
    steps, names = dict[str, float](), dict[str, None]()
    ratios = dict[Label, None]()
    for phase in run.plan.schedule.phases:
        for entry in phase.mix:
            declared = run.settings.objectives[entry.objective]
            made = (phase.stop - phase.start) * entry.mean_share
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
    """A name as the paper's authors gave it: `610m-clm-10k-mlm40-42k`, `610m-clm-dec42k-mlm40-64k`.

    The size, then for each phase its objective, MLM with its ratio in percent, and the steps so far; `dec` before them
    where the learning rate had decayed and the run goes on.
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
    """The name of a model, which can be that of a folder."""
    if template == PUBLISHED:
        return published_name(run, size=size)
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
        if unknown := [field for field in fields if field not in labels]:
            raise SettingsError(
                f"study.names={template!r}: no model has a label {unknown[0]!r}.{nearest(unknown[0], labels)} "
                f"Labels here: {', '.join(labels)}."
            )
        name = template.format_map(labels)
    except (ValueError, LookupError, MemoryError) as error:
        raise SettingsError(
            f"study.names={template!r} is no template: {error}. Write {{label}}, or published."
        ) from None
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"study.names={template!r} makes {name!r}, which cannot be the name of a folder. Use up to 200 letters, "
            "digits, and _ . + - behind the first."
        )
    return name


def _in_percent(ratio: Any) -> str:
    """A mask ratio in percent, of a ramp both its ends; empty where the objective has none."""
    if ratio is None:
        return ""
    return f"{100 * ratio:g}" if isinstance(ratio, float) else f"{100 * ratio.start:g}to{100 * ratio.stop:g}"
