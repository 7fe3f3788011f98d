"""The grid of a study: every model, and every checkpoint that `study.keep` names, on its tasks."""

from toolkit.execution.slurm import SlurmSettings
from toolkit.experiments.grid.declaration import Grid, ModelEntry, make_grid
from toolkit.experiments.study.declaration import Study
from toolkit.experiments.study.estimate import kept_steps, missed_steps
from toolkit.experiments.study.tree import Leaf, Tree

# Labels that a report reads off the checkpoint itself.
_OF_THE_CHECKPOINT = {"objective", "clm_share", "mask_ratio", "budget_steps", "seed"}


def grid_of(study: Study, tree: Tree) -> Grid | None:
    """The grid of a study; None where it has no task."""
    if not study.task:
        return None
    entries = [entry for leaf in tree.leaves.values() for entry in _entries(study, leaf)]
    # A whole node, as `launchers/slurm.sbatch` takes for a model.
    slurm = SlurmSettings(options=("--exclusive", "--mem=0", *study.job_options))
    return make_grid(study.grid, entries, study.task, slurm=slurm)


def _entries(study: Study, leaf: Leaf) -> list[ModelEntry]:
    """A model at its end, and at steps of `study.keep` that it trains itself: `NAME@STEP`."""
    labels = {name: value for name, value in leaf.model.labels.items() if name not in _OF_THE_CHECKPOINT}
    folder = leaf.model.run.folder
    # Its folder would mean an earlier checkpoint where the last is damaged.
    last = ModelEntry(name=leaf.name, path=str(folder.checkpoint(leaf.model.total_steps)), labels=labels)
    named = {*study.study.keep}.difference(missed_steps(leaf, study.study.keep))
    own = kept_steps(leaf, named)
    steps = tuple(step for step in own if step in named and step < leaf.model.total_steps)
    return [last, *([last.model_copy(update={"path": str(folder.path), "steps": steps})] if steps else [])]
