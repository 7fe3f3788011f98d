"""The pipeline stages of a run: how its schedule weighs the head, and the cut that follows."""

from toolkit.objectives.mlm import MaskRatioRamp
from toolkit.parallel.division import head_in_blocks, stage_blocks
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import schedule_of


def targets_per_position(settings: RunSettings, objective: str) -> float:
    """Targets of an objective over positions, as far as settings tell: without a mask ratio it counts as 1.

    A ramp counts with its mean.
    """
    ratio = getattr(settings.objectives[objective].settings, "mask_ratio", 1.0)
    return ratio.mean if isinstance(ratio, MaskRatioRamp) else float(ratio)


def blocks_of_stages(settings: RunSettings) -> list[range]:
    """The numbers of the blocks of each stage; the vocabulary size is known."""
    return stage_blocks(settings.model, settings.parallel, targets_per_position=_mean_targets(settings))


def describe_stages(settings: RunSettings) -> str:
    """The cut that was chosen, and why."""
    sizes = ", ".join(str(len(blocks)) for blocks in blocks_of_stages(settings))
    worth = head_in_blocks(settings.model, targets_per_position=_mean_targets(settings))
    return f"parallel.stages [{sizes}]: balanced by arithmetic; the head is worth {worth:.2g} blocks"


def _mean_targets(settings: RunSettings) -> float:
    """Targets per position over the whole schedule."""
    schedule = schedule_of(settings)
    steps = sum(
        (phase.stop - phase.start) * targets_per_position(settings, phase.objective) for phase in schedule.phases
    )
    return steps / schedule.num_steps
