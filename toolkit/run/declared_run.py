"""A run as its file declares it, and what follows from that alone."""

from dataclasses import dataclass, field
from functools import cached_property

from toolkit.checkpoint.manifest import LayoutEntry
from toolkit.parallel.division import stage_blocks
from toolkit.run.folder import RunFolder
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import StepPlan


@dataclass(frozen=True)
class DeclaredRun:
    """Valid settings, and the plan of steps that follows from them."""

    settings: RunSettings
    plan: StepPlan
    before: LayoutEntry | None = field(default=None, kw_only=True)
    """Layout of the checkpoint that its steps so far have led to: what is unset stays as it was there, since sums in
    another order round otherwise.
    """

    @cached_property
    def folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder(self.settings.run.dir)

    @property
    def stages(self) -> list[range]:
        """Numbers of the blocks of each pipeline stage; the vocabulary size is known."""
        parallel = self.settings.parallel
        if self.keeps_stages:
            assert self.before is not None
            parallel = parallel.model_copy(update={"stages": self.before.stages})
        return stage_blocks(self.settings.model, parallel, targets_per_position=self.mean_targets)

    @property
    def keeps_stages(self) -> bool:
        """True where the pipeline is cut as before."""
        parallel, before = self.settings.parallel, self.before
        return parallel.stages is None and before is not None and 1 < parallel.pp == len(before.stages)

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
        """Targets of an objective over positions, as far as its settings tell: what they say, a mask ratio, or 1."""
        settings = self.settings.objectives[objective].settings
        return float(getattr(settings, "targets_per_position", getattr(settings, "mask_ratio", 1.0)))
