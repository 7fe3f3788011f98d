"""Models of a grid that are checkpoints of one run: the `steps` of a `[[model]]`."""

from pathlib import Path

from toolkit.experiments.grid.declaration import ModelEntry
from toolkit.run.folder import kept_checkpoints


def at_steps(entry: ModelEntry) -> list[ModelEntry]:
    """The models of an entry: itself, or one for each checkpoint of its run that `steps` names, by step."""
    if entry.steps is None:
        return [entry]
    written = f'"{entry.steps}"' if isinstance(entry.steps, str) else list(entry.steps)
    asked = f"[[model]] {entry.name}: steps = {written}"
    return [
        ModelEntry(
            name=f"{entry.name}@{step}",
            path=str(path),
            labels={**entry.labels, "training_step": step},
        )
        for step, path in kept_checkpoints(Path(entry.path), entry.chosen, asked=asked, option="steps")
    ]
