"""The grid of a study: every model, and every checkpoint that `study.keep` names, on its tasks."""

from pydantic import ValidationError

from toolkit.core.errors import SettingsError
from toolkit.core.settings import explain
from toolkit.experiments.grid.declaration import Grid, ModelEntry
from toolkit.experiments.study.declaration import Study
from toolkit.experiments.study.estimate import kept_steps
from toolkit.experiments.study.tree import Leaf, Tree

# Labels that a report reads off the checkpoint itself.
_OF_THE_CHECKPOINT = {"objective", "clm_share", "mask_ratio", "budget_steps", "seed"}


def grid_of(study: Study, tree: Tree) -> Grid | None:
    """The grid of a study; None where it has no task.

    Raises:
        SettingsError: its tasks do not fit; names each mistake.
    """
    if not study.task:
        return None
    entries = tuple(entry for leaf in tree.leaves.values() for entry in _entries(study, leaf))
    try:
        return Grid(grid=study.grid, model=entries, task=study.task)
    except ValidationError as error:
        raise SettingsError(explain(error, Grid)) from None


def _entries(study: Study, leaf: Leaf) -> list[ModelEntry]:
    """A model at its end, and at steps of `study.keep` that it trains itself: `NAME@STEP`."""
    folder, labels = leaf.model.run.folder, dict(leaf.model.labels)
    told = {name: value for name, value in labels.items() if name not in _OF_THE_CHECKPOINT}
    steps = [step for step in kept_steps(leaf, study.study.keep) if step in study.study.keep]
    return [
        ModelEntry(name=leaf.name, path=str(folder.path), labels=told),
        *(
            ModelEntry(name=f"{leaf.name}@{step}", path=str(folder.checkpoint(step)), labels=told)
            for step in steps
            if step < leaf.model.total_steps
        ),
    ]
