"""Rows that a report compares: models over fine-tuning seeds, and configurations over pretraining seeds.

Models whose labels differ only in the seed are one configuration, pretrained several times. Its scores are the models'
means, so that its intervals show how much a score varies with pretraining. A model without a pretraining seed, such as
a published baseline, is a configuration with one observation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from toolkit.experiments.grid.declaration import Label, Labels
from toolkit.experiments.report.compare.statistics import Estimate, estimate
from toolkit.experiments.report.read.labels import RUN, SEED, TOTALS, Shown, distinguishing, names_after, quantity
from toolkit.experiments.report.read.results import Results
from toolkit.experiments.report.read.tasks import TaskInfo

_UNSHARED = (SEED, RUN, *TOTALS)
_NO_SEED = ""
FAMILY_NAMES = {
    "sc": "Sequence classification",
    "tc": "Token classification",
    "qa": "Question answering",
    "ir": "Retrieval",
    "pairs": "Minimal pairs",
}


class Seeds(StrEnum):
    """Kind of seeds over which a row's scores vary."""

    FINE_TUNING = "fine-tuning seeds"
    PRETRAINING = "pretraining seeds"
    NONE = "no pretraining seed"
    """One observation: a model compared with others that were pretrained several times."""


@dataclass(frozen=True)
class ScoreRow:
    """A model or a configuration, with its scores by task and seed."""

    name: str
    labels: Labels
    scores: Mapping[str, Mapping[Label, float]]
    seeds: Seeds = Seeds.FINE_TUNING
    unfinished: frozenset[str] = frozenset()
    """Tasks whose learning rate was chosen while other rates had cells without a result."""
    models: tuple[str, ...] = ()
    """Names of the models that the scores are of."""

    @cached_property
    def _estimates(self) -> dict[tuple[str, ...], Estimate]:
        return {}

    def estimate(self, tasks: Sequence[TaskInfo]) -> Estimate | None:
        """Mean over tasks; None unless all of them have scores, since other means are not comparable.

        The fine-tuning runs of two tasks are independent, unless both train on the same data: then a seed is the same
        model in both. A pretraining seed is shared by all tasks. The mean of such tasks is one observation per seed.
        """
        names = tuple(task.name for task in tasks)
        if not all(self.scores.get(name) for name in names):
            return None
        if names not in self._estimates:
            groups = self._dependent(tasks)
            # With these weights, the mean over groups is the mean over tasks.
            weights = [len(group) * len(groups) / len(tasks) for group in groups]
            samples = [
                [weight * score for score in self.by_seed(group).values()]
                for weight, group in zip(weights, groups, strict=True)
            ]
            if not all(samples):
                return None
            self._estimates[names] = estimate(samples)
        return self._estimates[names]

    def _dependent(self, tasks: Sequence[TaskInfo]) -> list[list[TaskInfo]]:
        """Groups of tasks in which a seed is one model; with unequal seeds, tasks of equal data are independent."""
        if self.seeds is not Seeds.FINE_TUNING:
            return [list(tasks)]
        groups: dict[object, list[TaskInfo]] = {}
        for task in tasks:
            groups.setdefault(task.name if task.training is None else (task.training,), []).append(task)
        parts: list[list[TaskInfo]] = []
        for group in groups.values():
            has_one_set_of_seeds = len({frozenset(self.scores[task.name]) for task in group}) == 1
            parts += [group] if has_one_set_of_seeds else [[task] for task in group]
        return parts

    def by_seed(self, tasks: Sequence[TaskInfo]) -> dict[Label, float]:
        """Mean over tasks for each seed that all of them have."""
        each = [self.scores.get(task.name, {}) for task in tasks]
        shared = set[Label].intersection(*map(set, each))
        return {seed: math.fsum(scores[seed] for scores in each) / len(each) for seed in sorted(shared, key=str)}


@dataclass(frozen=True)
class Level:
    """Rows that are compared with one another."""

    name: str
    """`models` or `configurations`; prefix of file names."""
    seeds: Seeds
    """Seeds over which the intervals are computed."""
    rows: tuple[ScoreRow, ...]
    tasks: tuple[TaskInfo, ...]
    shown: Shown = Shown()  # noqa: RUF009

    @property
    def families(self) -> dict[str, tuple[TaskInfo, ...]]:
        """Tasks by kind: the families in `FAMILY_NAMES` first."""
        kinds = {task.kind for task in self.tasks}
        order = [*(kind for kind in FAMILY_NAMES if kind in kinds), *sorted(kinds - FAMILY_NAMES.keys())]
        return {kind: tuple(task for task in self.tasks if task.kind == kind) for kind in order}


def varying_labels(rows: Sequence[ScoreRow]) -> tuple[str, ...]:
    """Labels that differ between rows, in order of first appearance."""
    names = dict.fromkeys(name for row in rows for name in row.labels)
    return tuple(name for name in names if len({row.labels.get(name) for row in rows}) > 1)


def family_name(kind: str) -> str:
    """Full name of a family; an unknown kind is returned unchanged."""
    return FAMILY_NAMES.get(kind, kind)


def model_level(results: Results) -> Level:
    """Models, with the scores at their chosen learning rates by fine-tuning seed."""
    rows = []
    for model in results.models:
        scores: dict[str, dict[Label, float]] = {
            task.name: {cell.seed: cell.main for cell in results.chosen(model.name, task.name)}
            for task in results.tasks
        }
        scores = {task: found for task, found in scores.items() if found}
        unfinished = frozenset(task for task in scores if (model.name, task) in results.unfinished_rates)
        labels = model.labels or {}
        rows.append(ScoreRow(model.name, labels, scores, unfinished=unfinished, models=(model.name,)))
    return Level("models", Seeds.FINE_TUNING, tuple(row for row in rows if row.scores), results.tasks, results.shown)


def configuration_level(models: Level) -> Level | None:
    """Models grouped by all labels except the seed; None unless some group has several, and none repeats a seed."""
    groups = _configurations(models)
    repeats = [len({row.labels[SEED] for row in rows}) for rows in groups.values()]
    if max(repeats, default=1) < 2 or repeats != [len(rows) for rows in groups.values()]:
        return None
    runs = _repeated_runs(models)
    rows = [_configuration(name, members, Seeds.PRETRAINING, runs) for name, members in groups.items()]
    rows += [_configuration(row.name, [row], Seeds.NONE, runs) for row in models.rows if SEED not in row.labels]
    return Level("configurations", Seeds.PRETRAINING, tuple(rows), models.tasks, models.shown)


def _configurations(models: Level) -> dict[str, list[ScoreRow]]:
    """Rows by configuration, named after the labels in which it differs from others."""
    groups: dict[tuple[tuple[str, Label], ...], list[ScoreRow]] = {}
    for row in models.rows:
        if SEED in row.labels:
            shared = ((name, value) for name, value in row.labels.items() if name not in _UNSHARED)
            groups.setdefault(tuple(sorted(shared)), []).append(row)
    names = distinguishing([dict(key) for key in groups])
    titles = names_after([dict(key) for key in groups], names)
    return {title or "all models": rows for title, rows in zip(titles, groups.values(), strict=True)}


def _repeated_runs(models: Level) -> dict[str, str]:
    """Common name of a run and its repeats with other seeds, by name of the run, if checkpoints are models."""
    runs = {row.labels[RUN] for row in models.rows if RUN in row.labels}
    ends = _configurations(replace(models, rows=tuple(row for row in models.rows if row.name in runs)))
    return {row.name: name for name, rows in ends.items() for row in rows}


def _configuration(name: str, members: Sequence[ScoreRow], seeds: Seeds, runs: Mapping[str, str]) -> ScoreRow:
    first = members[0].labels
    scores: dict[str, dict[Label, float]] = {}
    for row in members:
        for task in row.scores:
            found = list(row.scores[task].values())
            scores.setdefault(task, {})[row.labels.get(SEED, _NO_SEED)] = math.fsum(found) / len(found)
    labels = {label: value for label, value in first.items() if label != SEED}
    if (run := runs.get(str(first.get(RUN, members[0].name)))) is not None:
        labels[RUN] = run
    for label in TOTALS:
        values = [number for row in members if (number := quantity(row.labels.get(label))) is not None]
        if values:
            labels[label] = math.fsum(values) / len(values)
    unfinished = frozenset[str]().union(*(row.unfinished for row in members))
    return ScoreRow(name, labels, scores, seeds, unfinished, models=tuple(row.name for row in members))
