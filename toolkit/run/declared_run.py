"""Declared runs: the settings of a run file, and what depends only on them."""

from dataclasses import dataclass, field
from functools import cached_property

from toolkit.checkpoint.manifest import LayoutEntry
from toolkit.parallel.division import head_in_blocks, stage_blocks
from toolkit.run.folder import RunFolder
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import StepPlan


@dataclass(frozen=True)
class DeclaredRun:
    """Valid settings, and the plan of steps that follows from them."""

    settings: RunSettings
    plan: StepPlan
    before: LayoutEntry | None = field(default=None, kw_only=True)
    """Layout of the checkpoint after its steps so far: unset settings stay as they were there, since sums in another
    order round differently.
    """

    @cached_property
    def folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder(self.settings.run.dir)

    @property
    def stages(self) -> list[range]:
        """Block numbers of each pipeline stage; the vocabulary size must be known."""
        parallel = self.settings.parallel
        if self.keeps_stages:
            assert self.before is not None
            parallel = parallel.model_copy(update={"stages": self.before.stages})
        return stage_blocks(self.settings.model, parallel, targets_per_position=self.mean_targets)

    @property
    def keeps_stages(self) -> bool:
        """Return whether the pipeline is cut as before."""
        parallel, before = self.settings.parallel, self.before
        return parallel.stages is None and before is not None and 1 < parallel.pp == len(before.stages)

    def describe_stages(self) -> str:
        """The chosen pipeline cut, and why."""
        why = "as before this start"
        if not self.keeps_stages:
            worth = head_in_blocks(self.settings.model, targets_per_position=self.mean_targets)
            why = f"balanced by arithmetic; the head is worth {worth:.2g} blocks"
        sizes = ", ".join(str(len(blocks)) for blocks in self.stages)
        return f"parallel.stages [{sizes}]: {why}"

    @property
    def mean_targets(self) -> float:
        """Targets per position over the whole schedule."""
        schedule = self.plan.schedule
        targets = sum(
            (phase.stop - phase.start) * phase.mean_share(entry) * self.targets_per_position(entry.objective)
            for phase in schedule.phases
            for entry in phase.mix
        )
        return targets / schedule.total_steps

    def targets_per_position(self, objective: str) -> float:
        """Targets per position of an objective, by its settings: `targets_per_position`, else `mask_ratio`, else 1."""
        settings = self.settings.objectives[objective].settings
        return float(getattr(settings, "targets_per_position", getattr(settings, "mask_ratio", 1.0)))
