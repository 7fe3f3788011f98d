"""The choice of a learning rate by validation: at the end, and of those that get more seeds by successive halving.

Halving is that of Jamieson and Talwalkar, 2016: learning rates that do badly on few seeds get no more of them.
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Dropped:
    """A learning rate of a model and task that is not run on further seeds."""

    group: tuple[str, str]
    learning_rate: float
    num_seeds: int
    mean: float | None
    """Of their validation scores; None where one failed or diverged."""
    kept: float | None
    """The lowest mean of a rate that stayed."""


@dataclass(frozen=True)
class Halving:
    """Cells that are to run next, and rates that are no longer run."""

    wanted: tuple[Cell, ...]
    dropped: tuple[Dropped, ...]

    def keeps(self, cell: Cell) -> bool:
        """True unless the cell's learning rate has been dropped."""
        return all((one.group, one.learning_rate) != (cell.group, cell.learning_rate) for one in self.dropped)


def halve(cells: Iterable[Cell], scores: Mapping[Cell, Score], failed: Collection[Cell]) -> Halving:
    """Cells of each model and task's present round that have not run, and the rates dropped so far.

    A first round runs all rates on the first seed. Then the better half, rounded up, goes on to twice as many seeds,
    until one rate is left, which gets all seeds; the last round has all seeds. Of equal means (within 1e-12) the
    smaller rate goes on. Nothing but the scores decides, so an interrupted grid goes on as it would have.

    Seeds of `cells` ascend; rates with a cell in `failed`, which diverged or failed now, are dropped.
    """
    groups: dict[tuple[str, str], dict[float, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        groups[cell.group][cell.learning_rate].append(cell)
    wanted, dropped = list[Cell](), list[Dropped]()
    for group, rates in groups.items():
        own = _halve_group(group, rates, scores, failed)
        wanted += own.wanted
        dropped += own.dropped
    return Halving(tuple(wanted), tuple(dropped))


def _halve_group(
    group: tuple[str, str],
    rates: Mapping[float, list[Cell]],
    scores: Mapping[Cell, Score],
    failed: Collection[Cell],
) -> Halving:
    alive, dropped = list(rates), list[Dropped]()
    num_all = max(map(len, rates.values()))
    num_seeds = num_all if len(alive) == 1 else 1
    while alive:
        members = {rate: rates[rate][:num_seeds] for rate in alive}
        if left := [cell for own in members.values() for cell in own if cell not in scores and cell not in failed]:
            return Halving(tuple(left), tuple(dropped))
        whole = {rate: own for rate, own in members.items() if all(cell in scores for cell in own)}
        if num_seeds == num_all:
            break
        means = {rate: statistics.fmean(validation_score(scores[cell]) for cell in own) for rate, own in whole.items()}
        kept = list[float]()
        while len(kept) < min((len(alive) + 1) // 2, len(means)):
            kept.append(best_rate({rate: mean for rate, mean in means.items() if rate not in kept}))
        lowest = min((means[rate] for rate in kept), default=None)
        dropped += [Dropped(group, rate, num_seeds, means.get(rate), lowest) for rate in alive if rate not in kept]
        alive = [rate for rate in alive if rate in kept]
        num_seeds = num_all if len(alive) == 1 else min(2 * num_seeds, num_all)
    return Halving((), tuple(dropped))
