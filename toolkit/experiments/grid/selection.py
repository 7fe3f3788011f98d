"""Choice of a learning rate by validation scores."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.experiments.grid.cells import Cell, Score

_TIE = 1e-12
Selected = dict[str, dict[str, dict[str, Any]]]


def select(cells: Iterable[Cell], scores: Iterable[Score]) -> Selected:
    """Choose the learning rate of each model and task, and return it with the test scores at it.

    The best mean of the main metric over the validation scores of all seeds wins; on ties (within 1e-12), the smallest
    rate. A rate with an unfinished or diverged seed cannot be chosen, nor, among several rates, one with an unvalidated
    seed; a model and task without a candidate is left out.
    """
    finished = {score.cell: score for score in scores}
    groups: dict[tuple[str, str], dict[float, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in sorted(cells):
        groups[cell.group][cell.learning_rate].append(cell)
    selected: Selected = defaultdict(dict)
    for (model, task), rates in groups.items():
        whole = {
            rate: [finished[cell] for cell in members]
            for rate, members in rates.items()
            if all(cell in finished and (len(rates) == 1 or finished[cell].validation) for cell in members)
        }
        if whole:
            selected[model][task] = _entry(*_best(whole))
    return {model: dict(tasks) for model, tasks in selected.items()}


def _best(rates: Mapping[float, list[Score]]) -> tuple[float, list[Score]]:
    """The chosen rate and its scores; a single one needs no validation."""
    if len(rates) == 1:
        return next(iter(rates.items()))
    means = {
        rate: statistics.fmean((score.validation or {})[score.metric] for score in scores)
        for rate, scores in rates.items()
    }
    top = max(means.values())
    rate = min(rate for rate, mean in means.items() if mean >= top - _TIE)
    return rate, rates[rate]


def _entry(rate: float, scores: list[Score]) -> dict[str, Any]:
    test = [score.test[score.metric] for score in scores]
    return {
        "learning_rate": rate,
        "metric": scores[0].metric,
        "test_mean": statistics.fmean(test),
        "test_std": statistics.stdev(test) if len(test) > 1 else None,
        "seeds": [score.cell.seed for score in scores],
    }
