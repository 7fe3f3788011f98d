"""Pairs of rows to compare, and tables of their differences.

Rows on one line of a figure, at different values of its axis, are compared with each other, and all rows with a
baseline. Each such family of pairs is a separate question, so that Holm's correction is over its pairs only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from toolkit.experiments.report.compare.levels import Level, ScoreRow, Seeds, family_name
from toolkit.experiments.report.compare.score_tables import Column, columns_of, table_of_rows
from toolkit.experiments.report.compare.statistics import Estimate, PairedTest, holm, paired_test
from toolkit.experiments.report.compare.tables import MeanScore, Table, TableCell, slug
from toolkit.experiments.report.figures.lines import OTHERS, axes_of, comparable_on
from toolkit.experiments.report.read.labels import SEED
from toolkit.experiments.report.read.tasks import TaskInfo

_HEAD = ("family", "data set", "varies", "first", "second", "pairs", "difference", "low", "high", "p", "p (Holm)")
_DECIMALS = {"difference": 2, "low": 2, "high": 2, "p": 4, "p (Holm)": 4}
# Contains spaces, which labels rarely do.
_BASELINE = "against the baseline"


def comparison_table(level: Level, baseline: str | None = None) -> Table | None:
    """Paired tests for each data set and each family's average; None if there are none.

    `baseline`: name of a row to compare all others with, if the level has it.
    """
    pairs = pairs_of(level, baseline)
    rows = tuple(
        cells
        for kind, columns in columns_of(level).items()
        for column in columns
        for varied, members in pairs.items()
        for cells in _tests(members, (kind, column.name, varied), column.tasks)
    )
    if not rows:
        return None
    one = level.seeds.removesuffix("s")
    others = "" if _row(level, baseline) is None else f", and all with {baseline} (baseline)"
    note = (
        f"First minus second in points, paired by {one}: mean, its 95 % interval and a two-sided t test. Compared are "
        f"{level.name} on one line of a figure, at different values of its axis{others}, or all where "
        "there is no such figure; Holm's correction is over the pairs of one label within one data set or average. "
        "An average is tested on the seeds that all its data sets share. A dash: fewer than two pairs, or all "
        "differences equal."
    )
    if any(row.seeds is Seeds.NONE for row in level.rows):
        note += " A model without a pretraining seed is compared as it is: its score is treated as exact."
    return Table(f"{level.name}-tests", "Paired tests", note, _HEAD, rows, num_names=5, decimals=_DECIMALS)


def pairs_of(level: Level, baseline: str | None = None) -> Mapping[str, Sequence[tuple[ScoreRow, ScoreRow]]]:
    """Pairs on one line of a figure, each under the first axis that has it; all pairs if there is no such figure."""
    found: dict[str, list[tuple[ScoreRow, ScoreRow]]] = {}
    seen: set[tuple[str, str]] = set()
    for axis in axes_of(level):
        for first, second in _on_one_line(level, axis.name):
            if (first.name, second.name) not in seen:
                seen.add((first.name, second.name))
                found.setdefault(axis.name, []).append((first, second))
    if not found:
        found[level.name.removesuffix("s")] = list(combinations(level.rows, 2))
    if (reference := _row(level, baseline)) is not None:
        others = [(row, reference) for row in level.rows if row is not reference]
        found = {_BASELINE: others, **found}
    return found


def _on_one_line(level: Level, axis: str) -> Iterator[tuple[ScoreRow, ScoreRow]]:
    """Pairs on one line of the label's figure, at different values of the axis and with equal pretraining seeds."""
    for name, line in comparable_on(level, axis).items():
        for first, second in combinations(line if name != OTHERS else (), 2):
            if first.labels[axis] != second.labels[axis] and first.labels.get(SEED) == second.labels.get(SEED):
                yield first, second


def difference_tables(level: Level, baseline: str | None) -> list[Table]:
    """Tables of all rows minus the baseline, by family; empty if the level has no such row."""
    reference = _row(level, baseline)
    if reference is None:
        return []
    one = level.seeds.removesuffix("s")
    note = (
        f"Less {reference.name}, in points: mean difference and its 95 % interval by Student's t, paired by {one}; the "
        "highest of a column is bold."
    )
    others = [row for row in level.rows if row is not reference]
    tables = []
    for kind, columns in columns_of(level).items():
        table = table_of_rows(level, others, columns, lambda row, column: _difference(row, reference, column))
        if table.rows:
            name, title = f"{level.name}-{slug(kind)}-differences", f"{family_name(kind)}, less {reference.name}"
            tables.append(replace(table, name=name, title=title, note=note))
    return tables


def _row(level: Level, name: str | None) -> ScoreRow | None:
    return next((row for row in level.rows if row.name == name), None)


def _tests(
    pairs: Sequence[tuple[ScoreRow, ScoreRow]], names: tuple[str, str, str], tasks: Sequence[TaskInfo]
) -> Iterator[tuple[TableCell, ...]]:
    found = [
        (first.name, second.name, test) for first, second in pairs if (test := _test(first, second, tasks)) is not None
    ]
    adjusted = holm([test.p for _, _, test in found])
    for (first, second, test), corrected in zip(found, adjusted, strict=True):
        limits = (None, None) if test.interval is None else (100 * test.interval.low, 100 * test.interval.high)
        yield (*names, first, second, test.num_pairs, 100 * test.difference, *limits, test.p, corrected)


def _test(first: ScoreRow, second: ScoreRow, tasks: Sequence[TaskInfo]) -> PairedTest | None:
    """A row without a seed is paired with each seed of the other."""
    one, other = first.by_seed(tasks), second.by_seed(tasks)
    if first.seeds is Seeds.NONE and one:
        one = dict.fromkeys(other, *one.values())
    elif second.seeds is Seeds.NONE and other:
        other = dict.fromkeys(one, *other.values())
    return paired_test(one, other)


def _difference(row: ScoreRow, reference: ScoreRow, column: Column) -> MeanScore | None:
    test = _test(row, reference, column.tasks)
    if test is None:
        return None
    return MeanScore(Estimate(test.difference, (test.num_pairs,), interval=test.interval), row.name)
