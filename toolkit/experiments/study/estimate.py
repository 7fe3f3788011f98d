"""Cost of a study before it runs: tokens, FLOPs, disk, and hours if a speed is known."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Any

from toolkit.experiments.study.tree import Leaf, Tree
from toolkit.run.forecast import Arithmetic, arithmetic_of, checkpoint_bytes
from toolkit.run.metrics import last_trained_line, positions_per_second


@dataclass(frozen=True)
class StudyEstimate:
    """Cost of a tree; FLOPs and disk are None while the vocabulary size is unknown."""

    alone: Arithmetic
    """All models, each trained on its own."""
    shared: Arithmetic
    """All models, with common steps trained once."""
    num_kept: int
    """Number of checkpoints that are kept."""
    disk_bytes: int | None
    hours: tuple[float, float] | None
    """Alone and shared, one run at a time at the speed of the study's runs so far; None before any has a speed."""

    @classmethod
    def of(cls, tree: Tree) -> "StudyEstimate":
        """The estimate of a tree."""
        leaves = tree.leaves.values()
        alone = [arithmetic_of(leaf.model.run) for leaf in leaves]
        shared = [arithmetic_of(leaf.model.run, start=leaf.fork) for leaf in leaves]
        sizes = [size * len(leaf.kept) for leaf in leaves if (size := checkpoint_bytes(leaf.model.run.settings))]
        return cls(
            alone=sum(alone, start=Arithmetic(0, 0.0)),
            shared=sum(shared, start=Arithmetic(0, 0.0)),
            num_kept=sum(len(leaf.kept) for leaf in leaves),
            disk_bytes=sum(sizes) if len(sizes) == len(leaves) else None,
            hours=Speed(tree).hours(leaves),
        )


class Speed:
    """Speed of a study's runs, from their newest metrics lines.

    A run without one is assumed to match the others in FLOPs per second, or in positions if FLOPs are unknown.
    """

    def __init__(self, tree: Tree) -> None:
        whole = {leaf.name: arithmetic_of(leaf.model.run) for leaf in tree.leaves.values()}
        is_known = all(each.flops is not None for each in whole.values())
        self._work = {name: (each.flops or 0.0) / each.positions if is_known else 1.0 for name, each in whole.items()}
        self._measured = dict[str, float]()
        for leaf in tree.leaves.values():
            self.read(leaf)

    def read(self, leaf: Leaf) -> int:
        """Read the newest metrics line of a run and return its step; 0 if absent."""
        run, line = leaf.model.run, None
        # The speed is only displayed: ignore an unreadable file.
        with suppress(OSError):
            line = last_trained_line(run.folder)
        if line is None:
            return 0
        if (speed := positions_per_second(run.plan, line)) is not None:
            self._measured[leaf.name] = speed * self._work[leaf.name]
        return int(line["step"])

    def seconds(self, leaf: Leaf, first: int) -> float | None:
        """Seconds for a run's updates after step `first`; None if no run of the study has a speed yet."""
        if not self._measured:
            return None
        plan, speed = leaf.model.run.plan, self._measured.get(leaf.name) or mean(self._measured.values())
        return (plan.positions(leaf.model.total_steps) - plan.positions(first)) * self._work[leaf.name] / speed

    def hours(self, leaves: Iterable[Leaf]) -> tuple[float, float] | None:
        """Hours to train models one after another: each on its own, and with common steps trained once."""
        taken = [(self.seconds(leaf, 0) or 0.0, self.seconds(leaf, leaf.fork) or 0.0) for leaf in leaves]
        alone, shared = (sum(each) / 3600 for each in zip(*taken, strict=True))
        return (alone, shared) if self._measured else None


def missed_steps(leaf: Leaf) -> dict[int, tuple[str, ...]]:
    """Steps of `Leaf.keep` that a run passed without saving: it started before the checkpoint was asked for."""
    folder = leaf.model.run.folder
    newest, there = folder.newest_step(), {step for step, _ in folder.steps()}
    return {step: keys for step, keys in leaf.keep.items() if step not in there and step < newest}


def summary(tree: Tree, estimate: StudyEstimate, *, tflops: float | None) -> dict[str, Any]:
    """The study as one JSON object."""
    found: dict[str, Any] = {
        "models": [
            {
                "name": leaf.name,
                "labels": dict(leaf.model.labels),
                "total_steps": leaf.model.total_steps,
                "own_steps": leaf.own_steps,
                "from": leaf.giver,
                "step": leaf.fork,
                "tokens": leaf.model.run.plan.positions(leaf.model.total_steps),
                "segments": _segments(leaf),
                "kept": list(leaf.kept),
            }
            for _, leaf in tree.walk()
        ],
        "steps": {"alone": tree.alone, "shared": tree.shared},
        "tokens": estimate.shared.positions,
        "flops": estimate.shared.flops,
        "disk_bytes": estimate.disk_bytes,
        "checkpoints": estimate.num_kept,
    }
    if tflops is not None and estimate.shared.flops is not None:
        found["gpu_hours"] = estimate.shared.flops / (tflops * 1e12) / 3600
    if estimate.hours is not None:
        found["hours"] = estimate.hours[1]
    return found


def _segments(leaf: Leaf) -> list[dict[str, Any]]:
    """A model's own steps, cut where the objective changes and where the learning rate starts to decay."""
    plan, last = leaf.model.run.plan, leaf.model.total_steps
    cuts = {phase.stop for phase in plan.schedule.phases}
    cuts |= {
        stretch.stop - fall for stretch in plan.stretches for fall in (0, stretch.settings.ramps(stretch.num_steps)[1])
    }
    steps = sorted({leaf.fork, last, *(step for step in cuts if leaf.fork < step < last)})
    return [
        {
            "objective": plan.schedule.phase_at(start).objective,
            "start": start,
            "stop": stop,
            "decays": plan.has_decayed(start + 1),
        }
        for start, stop in pairwise(steps)
    ]
