"""Successive halving (Jamieson and Talwalkar, 2016): learning rates that do badly on few seeds get no more of them."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from toolkit.experiments.grid.cells import Cell, Score
from toolkit.experiments.grid.selection import best_rate, validation_score


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
