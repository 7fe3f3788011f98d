"""Tree of a study: which model starts from which other's checkpoint, so that every common step is trained once."""

import copy
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolkit.core.errors import SettingsError
from toolkit.core.text import counted
from toolkit.experiments.study.models import Model
from toolkit.run.comparison import Course, Parting, parting
from toolkit.run.continuation import Continuation
from toolkit.run.settings import RunSettings


@dataclass(frozen=True)
class Leaf:
    """A model in the tree."""

    model: Model
    giver: str | None
    """Name of the model from whose checkpoint it starts; None if it starts from its first weights."""
    fork: int
    """Updates made by the giver and its own givers up to that checkpoint."""
    cuts: tuple[int, ...]
    """Own steps at which other models start, ascending."""
    keep: Mapping[int, tuple[str, ...]]
    """Steps that the file keeps for it or for a model that shares them, each with the keys that name it; only those
    that it trains itself, before its learning rate decays."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def own_steps(self) -> int:
        """Number of updates that this model trains itself."""
        return self.model.total_steps - self.fork

    @property
    def kept(self) -> tuple[int, ...]:
        """Steps whose checkpoints are kept: those that others start from, those of the file, and the last one."""
        return tuple(sorted({*self.cuts, *self.keep, self.model.total_steps}))


class Tree:
    """The models of a study, without duplicates, each with its place; givers come first in `leaves`.

    `queued` are names of models with jobs in a queue; their starting points are fixed, so they are placed first.
    """

    def __init__(self, models: Sequence[Model], *, queued: Collection[str] = ()) -> None:
        self.queued = frozenset(queued)
        courses = {model.name: Course(model.run) for model in models}
        self._partings = {
            frozenset({one, other}): parting(courses[one], courses[other])
            for one, other in itertools.combinations(courses, 2)
        }
        self._refuse_twins(models)
        order: dict[str, tuple[Model, str | None, int]] = {}
        for model in sorted(models, key=lambda model: (model.name not in self.queued, self._rank(model, models))):
            # On ties, the first placed: the others have forked from it and do not train these steps.
            giver = max(order, key=lambda name: self.parting(name, model.name).step, default=None)
            fork = 0 if giver is None else self.parting(giver, model.name).step
            order[model.name] = (model, giver if fork else None, fork)
        self.leaves: dict[str, Leaf] = {}
        for name, (model, giver, fork) in order.items():
            cuts = tuple(sorted({at for _, by, at in order.values() if by == name}))
            self.leaves[name] = Leaf(model, giver, fork, cuts, self._keep(model, fork, models))

    def only(self, names: Collection[str]) -> "Tree":
        """Tree of some models and those they start from, which still keep what the omitted models start from."""
        wanted = set(names)
        # Givers come first.
        for leaf in reversed(self.leaves.values()):
            if leaf.name in wanted and leaf.giver is not None:
                wanted.add(leaf.giver)
        part = copy.copy(self)
        part.leaves = {name: leaf for name, leaf in self.leaves.items() if name in wanted}
        return part

    def parting(self, one: str, other: str) -> Parting:
        """The first step at which two models differ, and why."""
        return self._partings[frozenset({one, other})]

    def shared_steps(self, one: Model, other: Model) -> int:
        """Number of updates that two models share; all of them if both are the same model."""
        return one.total_steps if one is other else self.parting(one.name, other.name).step

    def settings_alone(self, name: str) -> RunSettings:
        """Settings that train a model alone as its study does: if they leave the precision, pipeline stages or
        micro-batch rows to the start of a run, those chosen by the first run that it shares steps with, once that has
        started. Results are bitwise equal only if all models that share steps have the layout of the first.
        """
        leaf = first = self.leaves[name]
        while first.giver is not None:
            first = self.leaves[first.giver]
        begun = first.model.run.folder.newest_manifest()
        run = Continuation(begun).keep_choices(leaf.model.run)
        settings = run.settings
        if begun is None:
            return settings
        parallel, train = settings.parallel, settings.train
        if run.keeps_stages:
            parallel = parallel.model_copy(update={"stages": tuple(len(blocks) for blocks in run.stages)})
        if train.micro_batch_rows is None:
            train = train.model_copy(update={"micro_batch_rows": begun.layout.micro_batch_rows})
        return settings.model_copy(update={"parallel": parallel, "train": train})

    def walk(self, name: str | None = None, indent: str = "") -> Iterator[tuple[str, Leaf]]:
        """Leaves depth-first from the roots, by the step at which they start, each with the lines before its name."""
        children = sorted((leaf for leaf in self.leaves.values() if leaf.giver == name), key=lambda leaf: leaf.fork)
        for number, leaf in enumerate(children, start=1):
            is_last = number == len(children)
            yield ("" if name is None else f"{indent}{'└ ' if is_last else '├ '}"), leaf
            below = "" if name is None else f"{indent}{'  ' if is_last else '│ '}"
            yield from self.walk(leaf.name, below)

    @property
    def alone(self) -> int:
        """Number of updates if each model were trained on its own."""
        return sum(leaf.model.total_steps for leaf in self.leaves.values())

    @property
    def shared(self) -> int:
        """Number of updates if common steps are trained once."""
        return sum(leaf.own_steps for leaf in self.leaves.values())

    def why_nothing_is_shared(self) -> str:
        """Most common difference of two models from the first step on; empty if steps are shared, or for one model."""
        if self.shared < self.alone or not self._partings:
            return ""
        found = [parting.reason.split("; ") for parting in self._partings.values()]
        first, *more = max(found, key=found.count)
        return first + (f", and {counted(len(more), 'more key')}" if more else "")

    def check_keep(self) -> None:
        """Raise `SettingsError` if a step to keep exists in none of its models."""
        kept = {(step, key) for leaf in self.leaves.values() for step, keys in leaf.keep.items() for key in keys}
        for leaf in self.leaves.values():
            for step, key in leaf.model.keep.items():
                if (step, key) not in kept:
                    longest = max(
                        each.model.total_steps for each in self.leaves.values() if key in each.model.keep.values()
                    )
                    raise SettingsError(
                        f"{key} names step {step:,}, which none of its models has before its learning rate decays; the "
                        f"longest has {counted(longest, 'step')}. Take it out."
                    )

    def _keep(self, model: Model, fork: int, models: Sequence[Model]) -> dict[int, tuple[str, ...]]:
        """`Leaf.keep` of a model."""
        found: dict[int, dict[str, None]] = {}
        for other in models:
            for step, key in other.keep.items():
                if fork < step <= self.shared_steps(model, other) and not model.run.plan.has_decayed(step):
                    found.setdefault(step, {})[key] = None
        return {step: tuple(keys) for step, keys in sorted(found.items())}

    def _rank(self, model: Model, models: Sequence[Model]) -> tuple[int, int, int]:
        """Sort key: a model that another one continues is a run of its own, so it comes first; then the longest, and
        of these the one that shares most steps with others.
        """
        total, others = model.total_steps, [other for other in models if other.name != model.name]
        common = {other.name: self.parting(model.name, other.name).step for other in others}
        if any(other.total_steps > total == common[other.name] for other in others):
            return 0, total, 0
        return 1, -total, -sum(common.values())

    def _refuse_twins(self, models: Sequence[Model]) -> None:
        for one, other in itertools.combinations(models, 2):
            if self.parting(one.name, other.name).step == one.total_steps == other.total_steps:
                raise SettingsError(
                    f"{one.name} ({one.place}) and {other.name} ({other.place}) are the same model: every setting that "
                    "affects weights is equal. Remove one."
                )
