"""Models of a grid that are checkpoints of one run: the `steps` of a `[[model]]`."""

from toolkit.core.errors import SettingsError
from toolkit.experiments.grid.declaration import ModelEntry
from toolkit.run.folder import RunFolder

_NEAREST = 8


def at_steps(entry: ModelEntry) -> list[ModelEntry]:
    """The models of an entry: itself, or one for each checkpoint of its run that `steps` names, by step."""
    if entry.steps is None:
        return [entry]
    written = f'"{entry.steps}"' if isinstance(entry.steps, str) else list(entry.steps)
    folder, asked = RunFolder(entry.path), f"[[model]] {entry.name}: steps = {written}"
    kept = sorted(step for step, _ in folder.steps())
    if not kept:
        what = "is not the folder of a run that has saved one" if folder.path.is_dir() else "is not a directory"
        raise SettingsError(
            f"{asked} stands for checkpoints of a run, and {entry.path} {what}. Give the folder of a run, or leave "
            "steps out."
        )
    wanted = [step for step in kept if step in entry.chosen]
    missing = [step for step in entry.steps if step not in kept] if isinstance(entry.steps, tuple) else []
    if missing or not wanted:
        first = missing[0] if missing else entry.chosen[0]
        near = sorted(sorted(kept, key=lambda step: abs(step - first))[:_NEAREST])
        what = (
            f"step {first} of {entry.path} is not a kept checkpoint" if missing else f"{entry.path} keeps none of them"
        )
        raise SettingsError(
            f"{asked}: {what}; the nearest kept ones are {', '.join(map(str, near))}. Give some of the kept steps; "
            "checkpoint.keep_at in a run's file keeps others."
        )
    return [
        ModelEntry(
            name=f"{entry.name}@{step}",
            path=str(folder.checkpoint(step)),
            labels={**entry.labels, "training_step": step},
        )
        for step in wanted
    ]
