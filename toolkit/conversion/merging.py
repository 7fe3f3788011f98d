"""Merging of checkpoints into one with the weighted mean of their weights.

A mean over checkpoints at a constant learning rate emulates a decay of that rate: each update counts with the weights
of all checkpoints after it (WSM, arXiv 2507.17634, section 3). So the weights are the differences of the decay from one
checkpoint to the next; equal weights are a linear decay.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import sqrt
from pathlib import Path

import torch

import toolkit
from toolkit.checkpoint.manifest import MANIFEST_NAME, LayoutEntry, ParentEntry
from toolkit.checkpoint.read import Checkpoint, open_checkpoint
from toolkit.checkpoint.write import write_weights_only
from toolkit.conversion.folders import check_output, output_directory
from toolkit.conversion.weights import settings_of
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.core.files import hash_file
from toolkit.run.folder import RunFolder, kept_checkpoints, range_of
from toolkit.run.identity import flat

# Weight of the checkpoint at a zero-based position, before division by the sum.
_BY_PLACE: dict[str, Callable[[int], float]] = {
    "uniform": lambda place: 1.0,
    "linear": lambda place: place + 1.0,
    "1-sqrt": lambda place: sqrt(place + 1) - sqrt(place),
}
# Settings that may differ: no weight was trained with them.
_FREE = ("initializer_range", "max_position_embeddings")


def merge(
    sources: Sequence[Path], out: Path, *, steps: str | None = None, weights: str = "uniform"
) -> tuple[ParentEntry, ...]:
    """Write the mean of checkpoints as a checkpoint without optimizer moments; return its parents.

    Everything except the weights is from the last one: step, settings, tokenizer. Raise `UserError` if fewer than two
    are found, the weights do not fit them, their models or tokenizers differ, or one is damaged.

    Args:
        sources: checkpoints, or runs: the newest checkpoint of each or, with `steps`, the kept ones in that range.
        out: must not exist, or be an empty folder.
        weights: `uniform`, `linear` or `1-sqrt`, by position; or comma-separated numbers.
    """
    check_output(out)
    run = RunFolder(out.absolute().parent.parent)
    if run.checkpoints == out.absolute().parent and run.settings_file.exists():
        raise SettingsError(f"{out}: the run {run.path} would take the merge for its own. Name another folder.")
    paths = list(sources)
    if steps is not None:
        if not (chosen := range_of(steps)):
            raise SettingsError(f"invalid value for --steps: expected A..B or A..B:EVERY, A up to B, got {steps!r}.")
        found = [kept_checkpoints(run, chosen, asked=f"--steps {steps}", option="--steps") for run in sources]
        paths = [path for kept in found for _, path in kept]
    parents = [open_checkpoint(path) for path in paths]
    _check(parents)
    numbers, last = _numbers(weights, parents), parents[-1]
    entries = tuple(
        ParentEntry(
            path=str(parent.path),
            step=parent.manifest.step,
            sha256=hash_file(parent.path / MANIFEST_NAME),
            weight=number / sum(numbers),
        )
        for parent, number in zip(parents, numbers, strict=True)
    )
    # Drops records of the training process, and losses, which are of other weights.
    alone = LayoutEntry(world_size=1, zero_stage=0)
    own = {"toolkit_version": toolkit.__version__, "optimizer_step": 0, "layout": alone, "merged": entries}
    with output_directory(out) as folder:
        write_weights_only(
            folder,
            last.manifest.model_copy(update={**own, "kernels": {}, "losses": {}, "recent_losses": {}}),
            shapes={name: entry.shape for name, entry in last.manifest.tensors.items()},
            read=lambda name: _mean(parents, numbers, name),
            tokenizer_folder=last.tokenizer_folder,
        )
    return entries


def _mean(parents: Sequence[Checkpoint], numbers: Sequence[float], name: str) -> Iterator[torch.Tensor]:
    """Mean of a parameter, a few rows at a time: summed in fp64, one checkpoint after another, and rounded once."""
    rows = [parent.rows(name) for parent in parents]
    for first in rows[0]:
        total = first.double().mul_(numbers[0])
        for others, number in zip(rows[1:], numbers[1:], strict=True):
            total += next(others).double().mul_(number)
        yield total.div_(sum(numbers)).float()


def _numbers(weights: str, parents: Sequence[Checkpoint]) -> list[float]:
    """Weights before division by their sum, so that a uniform mean divides a plain sum by the number of checkpoints."""
    if weights in _BY_PLACE:
        steps = [parent.manifest.step for parent in parents]
        if weights != "uniform" and any(later <= earlier for earlier, later in pairwise(steps)):
            raise SettingsError(
                f"--weights {weights} needs checkpoints in the order of their steps, and these are of steps "
                f"{', '.join(map(str, steps))}. Give them from the oldest to the newest, or a weight for each."
            )
        return [_BY_PLACE[weights](place) for place in range(len(parents))]
    try:
        numbers = [float(number) for number in weights.split(",")]
    except ValueError:
        numbers = [-1.0]
    if len(numbers) != len(parents) or min(numbers) < 0 or not 0 < sum(numbers) < float("inf"):
        raise SettingsError(
            f"invalid value for --weights: expected {', '.join(_BY_PLACE)}, or a number for each of the {len(parents)} "
            f"checkpoints, none below 0 and not all 0, got {weights!r}. In order, they are "
            f"{', '.join(str(parent.path) for parent in parents)}."
        )
    return numbers


def _check(parents: Sequence[Checkpoint]) -> None:
    """Raise for a single checkpoint, a duplicate, or different models or tokenizers."""
    last, paths = parents[-1], [parent.path.resolve() for parent in parents]
    if len(set(paths)) < max(len(paths), 2):
        given = ", ".join(str(parent.path) for parent in parents)
        raise SettingsError(
            f"a merge needs two or more different checkpoints, got {given}. Give others, or several of a run with "
            "--steps A..B; to count one more often, use --weights."
        )
    theirs = _identity(last)
    for parent in parents:
        ours = _identity(parent)
        if others := [key for key in sorted(ours.keys() | theirs.keys()) if ours.get(key) != theirs.get(key)]:
            lines = "\n  ".join(f"{key}: {ours.get(key)!r} and {theirs.get(key)!r}" for key in others[:8])
            raise CheckpointError(
                f"{parent.path} and {last.path} are not of one model and tokenizer:\n  {lines}\n"
                "Merge checkpoints that have these in common, such as those of one run."
            )


def _identity(checkpoint: Checkpoint) -> dict[str, object]:
    """Properties that the checkpoints of a merge must have in common."""
    manifest, model = checkpoint.manifest, flat(settings_of(checkpoint).model_dump(mode="json"), "model.")
    shapes = {f"shape of {name}": entry.shape for name, entry in manifest.tensors.items()}
    own = {key: value for key, value in model.items() if not key.endswith(_FREE)}
    return {"tokenizer (fingerprint)": manifest.vocabulary.fingerprint[:12], **own, **shapes}
