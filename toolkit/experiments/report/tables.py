"""Tables of a report, as values: `formats` writes them as Markdown, LaTeX and CSV, and `page` as HTML."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations

from toolkit.experiments.report.grid_files import Label
from toolkit.experiments.report.labels import (
    BUDGET,
    CLM_SHARE,
    MASK_RATIO,
    OBJECTIVE,
    SIZE,
    START,
    STEP,
    TOTALS,
    order_of,
    places_of,
)
from toolkit.experiments.report.levels import Level, Row, Seeds, family_name
from toolkit.experiments.report.lines import repeated_labels
from toolkit.experiments.report.results import Results, TaskInfo
from toolkit.experiments.report.statistics import Estimate, Interval, PairedTest, holm, paired_test

_LABEL_ORDER = (SIZE, OBJECTIVE, START, BUDGET, STEP, MASK_RATIO, CLM_SHARE)
"""As the paper's tables have them; rows are sorted by these, and others follow."""
_SCORES_HEAD = ("model", "task", "kind", "metric", "learning_rate", "seeds", "mean", "std", "low", "high")


class IntervalKind(StrEnum):
    """How a table's intervals are computed."""

    T = "t"
    BOOTSTRAP = "bootstrap"


@dataclass(frozen=True)
class Score:
    """A cell that holds a mean of a row: of one task of a model, or of several tasks or models (`task` is None)."""

    estimate: Estimate
    row: str
    task: str | None = None

    def interval(self, kind: IntervalKind) -> Interval | None:
        """The interval of that kind."""
        return self.estimate.t if kind is IntervalKind.T else self.estimate.bootstrap


Cell = str | float | int | bool | Score | None
"""None is shown as a dash: there is nothing to tell."""


@dataclass(frozen=True)
class Table:
    """A table; scores are fractions, and written in percent."""

    name: str
    """Of its files."""
    title: str
    note: str
    """What the numbers are, in sentences."""
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    num_names: int = 1
    """Leading columns that name the row."""
    intervals: IntervalKind = IntervalKind.T
    decimals: dict[str, int] = field(default_factory=dict)
    """Of columns of plain numbers, by heading; others are written as they are."""

    def best(self, column: int) -> float | None:
        """Highest mean of a column of at least two scores."""
        cells = [row[column] for row in self.rows]
        means = [cell.estimate.mean for cell in cells if isinstance(cell, Score)]
        return max(means) if len(means) > 1 else None


def scores_csv(results: Results) -> str:
    """`scores.csv`: a line for each model and task, scores as fractions, the t interval."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_SCORES_HEAD)
    for model, task in sorted(results.rates):
        cells = results.chosen(model, task)
        row = Row(model, {}, {task: {cell.seed: cell.score for cell in cells}})
        info = TaskInfo(task, cells[0].kind, cells[0].metric)
        found = row.estimate([info])
        assert found is not None
        limits = (None, None) if found.t is None else (found.t.low, found.t.high)
        head = (model, task, info.kind, info.metric, results.rates[model, task], len(cells))
        writer.writerow((*head, found.mean, found.std, *limits))
    return text.getvalue()


def score_tables(level: Level) -> list[Table]:
    """Averages of the families, then each family by data set; for each size apart where there are several."""
    tables: list[Table] = []
    for kind in IntervalKind:
        tables += _tables(level, kind)
        sizes = list(dict.fromkeys(row.labels[SIZE] for row in level.rows if SIZE in row.labels))
        for size in sizes if len(sizes) > 1 else ():
            rows = tuple(row for row in level.rows if row.labels.get(SIZE) == size)
            tables += _tables(Level(level.name, level.seeds, rows, level.tasks), kind, size=size)
    return tables


def _tables(level: Level, kind: IntervalKind, size: Label | None = None) -> Iterator[Table]:
    families = level.families
    place = "" if size is None else f"-{_slug(str(size))}"
    suffix = place + ("" if kind is IntervalKind.T else "-bootstrap")
    of_size = "" if size is None else f", {SIZE} {size}"
    note = _note(level, kind)
    if len(families) > 1:
        columns = [(family_name(name), tasks) for name, tasks in families.items()]
        yield _score_table(level, columns, kind, f"{level.name}-families{suffix}", f"Families{of_size}", note)
    for name, tasks in families.items():
        columns = [(f"{task.name} ({task.metric})", tasks[index : index + 1]) for index, task in enumerate(tasks)]
        if len(tasks) > 1:
            columns.append(("average", tasks))
        title = f"{family_name(name)}{of_size}"
        yield _score_table(level, columns, kind, f"{level.name}-{_slug(name)}{suffix}", title, note)


def _score_table(
    level: Level,
    columns: Sequence[tuple[str, Sequence[TaskInfo]]],
    kind: IntervalKind,
    name: str,
    title: str,
    note: str,
) -> Table:
    hidden = {*TOTALS, *repeated_labels(level)}
    known = [label for label in _LABEL_ORDER if label in level.label_names]
    labels = tuple(label for label in dict.fromkeys((*known, *level.label_names)) if label not in hidden)
    # The labels are all there is to a configuration's name.
    is_named = level.seeds is Seeds.FINE_TUNING or not labels
    rows = tuple(
        (
            *((row.name,) if is_named else ()),
            *(row.labels.get(label) for label in labels),
            *(_score(level, row, tasks) for _, tasks in columns),
        )
        for row in _sorted_rows(level.rows, known)
        if any(row.estimate(tasks) for _, tasks in columns)
    )
    names = (*((level.name.removesuffix("s"),) if is_named else ()), *labels)
    head = (*names, *(heading for heading, _ in columns))
    return Table(name, title, note, head, rows, num_names=len(names), intervals=kind)


def _sorted_rows(rows: Sequence[Row], labels: Sequence[str]) -> list[Row]:
    """Numbers and sizes ascending, texts in the order in which they come; what has no such label comes last."""
    places = [places_of(row.labels[label] for row in rows if label in row.labels) for label in labels]
    return sorted(rows, key=lambda row: order_of([row.labels.get(label) for label in labels], places))


def _score(level: Level, row: Row, tasks: Sequence[TaskInfo]) -> Score | None:
    found = row.estimate(tasks)
    if found is None:
        return None
    is_one = level.seeds is Seeds.FINE_TUNING and len(tasks) == 1
    return Score(found, row.name, tasks[0].name if is_one else None)


def _note(level: Level, kind: IntervalKind) -> str:
    way = "by Student's t" if kind is IntervalKind.T else "by percentile bootstrap (10,000 resamples)"
    once = " Each model was pretrained once: the intervals are those of fine-tuning alone."
    return (
        f"Test scores in percent: mean and 95 % interval over {level.seeds}, {way}; the highest mean of a column is "
        "bold. Learning rates were chosen on validation scores. An average is the unweighted mean of the data sets, "
        f"and only given where all were run.{once if level.seeds is Seeds.FINE_TUNING else ''}"
    )


def rates_table(results: Results, models: Level) -> Table:
    """The chosen learning rate of each model and task."""
    head = ("model", *(task.name for task in results.tasks))
    rows = tuple(
        (row.name, *(results.rates.get((row.name, task.name)) for task in results.tasks)) for row in models.rows
    )
    note = "The rate with the best mean validation score over seeds; of equal ones the smallest."
    return Table("learning-rates", "Chosen learning rates", note, head, rows)


def comparison_table(level: Level) -> Table | None:
    """Paired tests between all rows, for each data set and each family's average; None without a pair of rows."""
    rows: list[tuple[Cell, ...]] = []
    for family, tasks in level.families.items():
        columns: list[tuple[str, tuple[TaskInfo, ...]]] = [(task.name, (task,)) for task in tasks]
        if len(tasks) > 1:
            columns.append(("average", tasks))
        for column, members in columns:
            rows += _comparisons(level, family, column, members)
    if not rows:
        return None
    head = ("family", "data set", "first", "second", "pairs", "difference", "low", "high", "p", "p (Holm)")
    note = (
        f"First minus second in points, paired by {level.seeds.removesuffix('s')}: mean, its 95 % interval and a "
        "two-sided t test. Holm's correction is over all pairs of rows within one data set or average. An average is "
        "tested on the seeds that all its data sets share. A dash: fewer than two pairs, or all differences equal."
    )
    decimals = {"difference": 2, "low": 2, "high": 2, "p": 4, "p (Holm)": 4}
    title = "Paired tests"
    return Table(f"{level.name}-tests", title, note, head, tuple(rows), num_names=4, decimals=decimals)


def _comparisons(level: Level, family: str, column: str, tasks: Sequence[TaskInfo]) -> Iterator[tuple[Cell, ...]]:
    scores = {row.name: row.by_seed(tasks) for row in level.rows}
    found = [
        (first.name, second.name, test)
        for first, second in combinations(level.rows, 2)
        if (test := paired_test(scores[first.name], scores[second.name])) is not None
    ]
    adjusted = holm([test.p for _, _, test in found])
    for (first, second, test), corrected in zip(found, adjusted, strict=True):
        yield (family, column, first, second, *_test_cells(test), test.p, corrected)


def _test_cells(test: PairedTest) -> tuple[Cell, ...]:
    limits = (None, None) if test.interval is None else (100 * test.interval.low, 100 * test.interval.high)
    return (test.num_pairs, 100 * test.difference, *limits)


def _slug(text: str) -> str:
    """Of a name that others chose, as part of a file's name."""
    return "".join(sign if sign.isalnum() or sign in "._" else "-" for sign in text).strip(".-") or "unnamed"
