"""Figures of scores against the fine-tuning learning rate, and of their spread over rates and seeds."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.core.text import counted
from toolkit.experiments.report.compare.levels import Level, family_name, varying_labels
from toolkit.experiments.report.figures.pictures import Panel, Picture, Point, Series, floor_of, floor_sentence
from toolkit.experiments.report.read.labels import OBJECTIVE, START, named_after
from toolkit.experiments.report.read.results import Results
from toolkit.experiments.report.read.tasks import TaskInfo

_ByRate = Mapping[float, Mapping[int, float]]
"""Scores of a model in percent by rate and seed."""


@dataclass(frozen=True)
class _Group:
    """Data sets of a family that were run at the same rates."""

    title: str
    tasks: tuple[TaskInfo, ...]
    rates: tuple[float, ...]

    @property
    def y_label(self) -> str:
        return "test score (%)" if len(self.tasks) > 1 else f"test {self.tasks[0].metric} (%)"


def rate_pictures(results: Results, level: Level) -> Iterator[Picture]:
    """Test scores against the rate, and their spread over rates and seeds; none if no data set has several rates.

    Lines are the values of the label `objective` (and `start`) if a row has it, otherwise rows. A model counts if it
    was run at all rates of a panel.
    """
    lines = _lines(level)
    curves: list[Panel] = []
    spreads: list[Panel] = []
    nums, nums_shared = set[int](), set[int]()
    for group in _groups(results, level):
        scores = {name: list(_scores(results, models, group)) for name, models in lines.items()}
        drawn = [(color, name, found) for color, (name, found) in enumerate(scores.items()) if found]
        if drawn:
            series = tuple(Series(name, _curve(found, group.rates), color) for color, name, found in drawn)
            curves.append(Panel(group.title, series, group.y_label, floor=floor_of(group.tasks)))
            balanced = [(color, name, list(map(_on_shared_seeds, found))) for color, name, found in drawn]
            pooled = tuple(Series(name, (_spread(found, color),), color) for color, name, found in balanced)
            spreads.append(Panel(group.title, pooled, group.y_label, floor=floor_of(group.tasks)))
            nums |= {len(scores) for _, _, found in drawn for by_rate in found for scores in by_rate.values()}
            nums_shared |= {len(scores) for _, _, found in balanced for by_rate in found for scores in by_rate.values()}
    if curves:
        is_pooled = any(len(models) > 1 for models in lines.values())
        several = " Of several models on a line: the mean, and the pooled standard deviation." if is_pooled else ""
        several += floor_sentence(curves)
        yield Picture(
            name="learning-rates",
            title="Sensitivity to the learning rate",
            caption=(
                f"Mean test score at each learning rate of fine-tuning, of {_seeds_text(nums)}"
                f"{'; bars: one standard deviation' if max(nums) > 1 else ''}.{several}"
            ),
            x_label="learning rate",
            panels=tuple(curves),
            is_log=True,
        )
        yield Picture(
            name="learning-rate-spread",
            title="Spread over learning rates and seeds",
            caption=(
                "Mean test score over all learning rates; bars: one standard deviation over rates and seeds, of the "
                f"seeds that all rates of a model have ({_seeds_text(nums_shared)}).{several}"
            ),
            x_label="",
            panels=tuple(spreads),
            ticks=(),
        )


def _lines(level: Level) -> dict[str, list[str]]:
    """Names of models by line."""
    varying = varying_labels(level.rows)
    names = [name for name in (OBJECTIVE, START) if name in varying]
    lines: dict[str, list[str]] = {}
    for row in level.rows:
        label = named_after(row.labels, names) if OBJECTIVE in row.labels and names else ""
        lines.setdefault(label or row.name, []).extend(row.models)
    return lines


def _groups(results: Results, level: Level) -> Iterator[_Group]:
    for kind, tasks in level.families.items():
        rates: dict[str, set[float]] = {task.name: set() for task in tasks}
        for cell in results.cells:
            if cell.task in rates:
                rates[cell.task].add(cell.learning_rate)
        for shared in dict.fromkeys(tuple(sorted(found)) for found in rates.values()):
            alike = tuple(task for task in tasks if tuple(sorted(rates[task.name])) == shared)
            is_family = len(alike) == len(tasks) > 1
            title = family_name(kind) if is_family else ", ".join(task.name for task in alike)
            if len(shared) > 1:
                yield _Group(title, alike, shared)


def _scores(results: Results, models: Iterable[str], group: _Group) -> Iterator[_ByRate]:
    """Means over the data sets by rate and seed, for each model with a seed that was run at all rates."""
    for model in models:
        by_rate: dict[float, Mapping[int, float]] = {}
        for rate in group.rates:
            each = [
                {cell.seed: cell.main for cell in results.of(model, task.name) if cell.learning_rate == rate}
                for task in group.tasks
            ]
            seeds = sorted(set.intersection(*(set(found) for found in each)))
            by_rate[rate] = {seed: 100 * math.fsum(found[seed] for found in each) / len(each) for seed in seeds}
        if _shared_seeds(by_rate):
            yield by_rate


def _shared_seeds(by_rate: _ByRate) -> set[int]:
    """Seeds that all rates share; in an unfinished grid, some rates have more."""
    return set.intersection(*map(set, by_rate.values()))


def _on_shared_seeds(by_rate: _ByRate) -> _ByRate:
    """Scores of the seeds that all rates share; otherwise the mean over rates would favor rates with more seeds."""
    seeds = sorted(_shared_seeds(by_rate))
    return {rate: {seed: scores[seed] for seed in seeds} for rate, scores in by_rate.items()}


def _seeds_text(nums: set[int]) -> str:
    """'5 seeds', 'seeds, 1 to 5 of them'."""
    return counted(min(nums), "seed") if len(nums) == 1 else f"seeds, {min(nums)} to {max(nums)} of them"


def _curve(models: Sequence[_ByRate], rates: Sequence[float]) -> tuple[Point, ...]:
    return tuple(_pooled(rate, [list(found[rate].values()) for found in models]) for rate in rates)


def _spread(models: Sequence[_ByRate], place: int) -> Point:
    samples = [[score for scores in found.values() for score in scores.values()] for found in models]
    return _pooled(float(place), samples)


def _pooled(x: float, samples: Sequence[Sequence[float]]) -> Point:
    """Mean of the models' means, and one standard deviation within models (n - 1) on either side."""
    mean = math.fsum(math.fsum(scores) / len(scores) for scores in samples) / len(samples)
    variances = [float(np.var(scores, ddof=1)) for scores in samples if len(scores) > 1]
    if not variances:
        return Point(x, mean)
    deviation = math.sqrt(math.fsum(variances) / len(variances))
    return Point(x, mean, mean - deviation, mean + deviation)
