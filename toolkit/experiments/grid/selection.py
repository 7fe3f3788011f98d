"""The choice of a learning rate by validation."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.experiments.grid.cells import Cell, Score

_TIE = 1e-12
Selected = dict[str, dict[str, dict[str, Any]]]


def select(cells: Iterable[Cell], scores: Iterable[Score]) -> Selected:
    """The learning rate of each model and task, and the test scores at it.

    The best mean of the main metric over the validation scores of all seeds; of equal ones (within 1e-12) the smallest
    rate. A rate of which a seed has not finished cannot be chosen; a model and task without any other is left out.
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
            if all(cell in finished for cell in members)
        }
        if whole:
            selected[model][task] = _entry(*_best(whole, of=len(rates)))
    return {model: dict(tasks) for model, tasks in selected.items()}


def _best(rates: Mapping[float, list[Score]], *, of: int) -> tuple[float, list[Score]]:
    """The chosen rate and its scores; a single declared rate needs no validation."""
    if of == 1:
        [(rate, scores)] = rates.items()
        return rate, scores
    rate = best_rate({rate: statistics.fmean(map(validation_score, scores)) for rate, scores in rates.items()})
    return rate, rates[rate]


def best_rate(means: Mapping[float, float]) -> float:
    """The rate with the highest mean validation score; of equal ones (within 1e-12) the smallest."""
    top = max(means.values())
    return min(rate for rate, mean in means.items() if mean >= top - _TIE)


def validation_score(score: Score) -> float:
    """The main metric on the validation split."""
    assert score.validation is not None, f"{score.cell} has several learning rates and no validation"
    return score.validation[score.metric]


def _entry(rate: float, scores: list[Score]) -> dict[str, Any]:
    test = [score.test[score.metric] for score in scores]
    return {
        "learning_rate": rate,
        "metric": scores[0].metric,
        "test_mean": statistics.fmean(test),
        "test_std": statistics.stdev(test) if len(test) > 1 else None,
        "seeds": [score.cell.seed for score in scores],
    }
