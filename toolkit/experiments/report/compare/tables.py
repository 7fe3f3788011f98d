"""Tables of a report, as data: `formats` writes them as Markdown, LaTeX and CSV, and `page` as HTML."""

import csv
import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from toolkit.core.text import counted
from toolkit.experiments.report.compare.levels import Level, ScoreRow
from toolkit.experiments.report.compare.statistics import Estimate
from toolkit.experiments.report.read.completeness import MissingReason, missing_summary
from toolkit.experiments.report.read.labels import SEED
from toolkit.experiments.report.read.results import Results
from toolkit.experiments.report.read.tasks import ELSEWHERE, TaskInfo

_SCORES_HEAD = ("model", "task", "kind", "metric", "learning_rate", "seeds", "mean", "std", "low", "high")
_LONG_HEAD = ("task", "kind", "metric", "seed", "learning_rate", "score")
_LONGEST_MESSAGE = 160


@dataclass(frozen=True)
class MeanScore:
    """Table cell with a mean score of a row: one task of a model, or several tasks or models (`task` is None)."""

    estimate: Estimate
    row: str
    task: str | None = None
    marks: str = ""
    """Signs after the score, explained in the table's remarks."""

    @property
    def is_reference(self) -> bool:
        """True for a reference value, which is not a mean of runs."""
        return not self.estimate.nums


TableCell = str | float | int | bool | MeanScore | None
"""None is shown as a dash."""


@dataclass(frozen=True)
class Table:
    """A table; scores are stored as fractions and written in percent."""

    name: str
    """Stem of its file names."""
    title: str
    note: str
    """Sentences that explain the numbers."""
    head: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    num_names: int = 1
    """Leading columns that name the row."""
    decimals: dict[str, int] = field(default_factory=dict)
    """Decimals of numeric columns, by heading; other columns are written unchanged."""
    remarks: str = ""
    """Sentences that apply to these rows and columns only."""

    @property
    def scores(self) -> Iterator[MeanScore]:
        """All scores that are means of runs."""
        return (cell for row in self.rows for cell in row if isinstance(cell, MeanScore) and not cell.is_reference)

    @cached_property
    def nums(self) -> set[int]:
        """Distinct numbers of seeds over which data sets are scored."""
        return {num for score in self.scores for num in score.estimate.nums}

    def is_best(self, row: Sequence[TableCell], column: int) -> bool:
        """True for a mean of runs that no other mean in its column exceeds, if there are others."""
        score = row[column]
        if not isinstance(score, MeanScore) or score.is_reference:
            return False
        cells = [other[column] for other in self.rows]
        means = [cell.estimate.mean for cell in cells if isinstance(cell, MeanScore) and not cell.is_reference]
        return len(means) > 1 and score.estimate.mean == max(means)

    def seeds_text(self, score: MeanScore) -> str:
        """'3 seeds', '1 to 5 seeds'; empty if the whole table has one number of seeds, and the score an interval."""
        nums = score.estimate.nums
        if not nums or (len(self.nums) == 1 and score.estimate.interval is not None):
            return ""
        return counted(nums[0], "seed") if len({*nums}) == 1 else f"{min(nums)} to {max(nums)} seeds"


def scores_csv(results: Results) -> str:
    """`scores.csv`: a line for each model and task, with scores as fractions and the t interval."""
    rows: list[tuple[object, ...]] = [_SCORES_HEAD]
    for model, task in sorted(results.rates):
        cells = results.chosen(model, task)
        row = ScoreRow(model, {}, {task: {cell.seed: cell.main for cell in cells}})
        info = TaskInfo(task, cells[0].kind, cells[0].metric)
        found = row.estimate([info])
        assert found is not None
        limits = (None, None) if found.interval is None else (found.interval.low, found.interval.high)
        head = (model, task, info.kind, info.metric, results.rates[model, task], len(cells))
        rows.append((*head, found.mean, found.std, *limits))
    return csv_text(rows)


def long_csv(results: Results) -> str:
    """`long.csv`: a line for each score at every learning rate, with the labels of its model; scores as fractions."""
    labels = {model.name: model.labels or {} for model in results.models}
    names = list(dict.fromkeys(name for found in labels.values() for name in found))
    # The column `seed` is the fine-tuning seed.
    head = ("model", *("pretraining_seed" if name == SEED else name for name in names), *_LONG_HEAD)
    rows = [
        (cell.model, *map(labels[cell.model].get, names), *map(vars(cell).get, _LONG_HEAD[:-1]), cell.main)
        for cell in results.cells
    ]
    return csv_text([head, *rows])


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def rates_table(results: Results, models: Level) -> Table | None:
    """Chosen learning rate of each model and task, and the number of unfinished ones; None if no task has rates."""
    tasks = [task for task in results.tasks if task.kind not in ELSEWHERE]
    if not tasks:
        return None
    head = ("model", *(task.name for task in tasks))
    rows = tuple((row.name, *(_rate(results, row.name, task.name) for task in tasks)) for row in models.rows)
    note = "The rate with the best mean validation score over seeds; of equal ones the smallest."
    if any(isinstance(cell, str) for row in rows for cell in row[1:]):
        note += " A rate is unfinished where a run has failed or has not run: it cannot be chosen yet."
    return Table("learning-rates", "Chosen learning rates", note, head, rows)


def _rate(results: Results, model: str, task: str) -> TableCell:
    rate, unfinished = results.rates.get((model, task)), results.unfinished_rates.get((model, task), ())
    return f"{rate:g} ({counted(len(unfinished), 'rate')} unfinished)" if rate is not None and unfinished else rate


def missing_table(results: Results) -> Table | None:
    """Runs without a result, one row per model, task, learning rate and reason; None if none is missing."""
    groups: dict[tuple[str, str, float, MissingReason], list[tuple[int, str]]] = {}
    for one in results.missing:
        key = (*one.cell.group, one.cell.learning_rate, one.reason)
        groups.setdefault(key, []).append((one.cell.seed, one.message))
    if not groups:
        return None
    rows = list[tuple[TableCell, ...]]()
    for (model, task, rate, reason), found in groups.items():
        message = textwrap.shorten(found[0][1], _LONGEST_MESSAGE, placeholder=" ...")
        rows.append((model, task, rate, ", ".join(str(seed) for seed, _ in found), reason.value, message))
    note = f"{missing_summary(results.missing)}. A learning rate can be chosen where all its seeds have a result."
    head = ("model", "data set", "learning rate", "seeds", "reason", "message")
    return Table("missing-runs", "Runs without a result", note, head, tuple(rows), num_names=len(head))


def distinct_names(names: Iterable[str]) -> list[str]:
    """File names made distinct: user-chosen parts may make them equal."""
    found: dict[str, str] = {}
    for given in names:
        free = (given, *(f"{given}-{number}" for number in range(2, len(found) + 2)))
        name = next(name for name in free if name.lower() not in found)
        found[name.lower()] = name
    return [*found.values()]


def slug(text: str) -> str:
    """A user-chosen name, as part of a file name."""
    return "".join(sign if sign.isalnum() or sign in "._" else "-" for sign in text).strip(".-") or "unnamed"
