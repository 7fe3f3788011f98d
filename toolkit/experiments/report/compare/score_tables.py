"""Tables of scores: averages of the families of tasks, each family by data set, and the models of a study."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from toolkit.experiments.grid.declaration import Label
from toolkit.experiments.report.compare.levels import Level, ScoreRow, Seeds, family_name, varying_labels
from toolkit.experiments.report.compare.statistics import Estimate
from toolkit.experiments.report.compare.tables import MeanScore, Table, slug
from toolkit.experiments.report.read.labels import (
    BUDGET,
    CLM_SHARE,
    MASK_RATIO,
    OBJECTIVE,
    PARAMETERS,
    SIZE,
    START,
    STEP,
    TOKENS,
    TOTALS,
    order_of,
    places_of,
)
from toolkit.experiments.report.read.study import StudyModel
from toolkit.experiments.report.read.tasks import TaskInfo, majority_of

_LABEL_ORDER = (SIZE, OBJECTIVE, START, BUDGET, STEP, MASK_RATIO, CLM_SHARE)
"""Order of the paper's tables: rows are sorted by these labels, whose columns precede those of other labels."""
UNFINISHED, NOTHING_LEARNT = "\u2020", "\u2021"
_READS_NO_TEXT = "reads no text"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Column:
    """A column of scores: a data set, or the mean of several."""

    name: str
    heading: str
    tasks: tuple[TaskInfo, ...]


def columns_of(level: Level) -> dict[str, list[Column]]:
    """Columns by family: its data sets, and their average if there are several."""
    found: dict[str, list[Column]] = {}
    for kind, tasks in level.families.items():
        found[kind] = [Column(task.name, f"{task.name} ({task.metric})", (task,)) for task in tasks]
        if len(tasks) > 1:
            found[kind].append(Column("average", "average", tasks))
    return found


def score_tables(level: Level) -> list[Table]:
    """Averages of the families, then each family by data set; again for each model size if there are several."""
    tables = [*_tables(level)]
    sizes = list(dict.fromkeys(row.labels[SIZE] for row in level.rows if SIZE in row.labels))
    for size in sizes if len(sizes) > 1 else ():
        rows = tuple(row for row in level.rows if row.labels.get(SIZE) == size)
        tables += _tables(replace(level, rows=rows), size=size)
    return tables


def _tables(level: Level, size: Label | None = None) -> Iterator[Table]:
    suffix = "" if size is None else f"-{slug(str(size))}"
    of_size = "" if size is None else f", {SIZE} {size}"
    families = [Column(name, family_name(name), tasks) for name, tasks in level.families.items()]
    if len(families) > 1:
        yield _score_table(level, families, f"{level.name}-families{suffix}", f"Families{of_size}")
    for name, columns in columns_of(level).items():
        title = f"{family_name(name)}{of_size}"
        yield _score_table(level, columns, f"{level.name}-{slug(name)}{suffix}", title)


def _score_table(level: Level, columns: Sequence[Column], name: str, title: str) -> Table:
    table = replace(
        table_of_rows(level, level.rows, columns, lambda row, column: mean_score(level, row, column.tasks)),
        name=name,
        title=title,
        note=_note(level),
    )
    floors = [majority_of(column.tasks) for column in columns]
    if any(floor is not None for floor in floors):
        names = (_READS_NO_TEXT, *[None] * (table.num_names - 1))
        cells = [None if floor is None else MeanScore(Estimate(floor, ()), _READS_NO_TEXT) for floor in floors]
        table = replace(table, rows=(*table.rows, (*names, *cells)))
    return replace(table, remarks=" ".join(_remarks(table, level, columns)))


def table_of_rows(
    level: Level,
    rows: Iterable[ScoreRow],
    columns: Sequence[Column],
    score_of: Callable[[ScoreRow, Column], MeanScore | None],
) -> Table:
    """Unnamed table of the rows that have a score: the columns that name a row, then its scores."""
    varying, hidden = varying_labels(level.rows), {*TOTALS, *_repeated_labels(level)}
    known = [label for label in _LABEL_ORDER if label in varying]
    labels = tuple(label for label in dict.fromkeys((*known, *varying)) if label not in hidden)
    keys = [tuple(row.labels.get(label) for label in labels) for row in level.rows]
    # Usually the labels already say all that is in a configuration's name.
    is_told = len({*keys}) == len(keys) and all(any(value is not None for value in key) for key in keys)
    is_named = level.seeds is Seeds.FINE_TUNING or not is_told
    names = (*((level.name.removesuffix("s"),) if is_named else ()), *labels)
    cells, chosen = [], list(rows)
    # Numbers and sizes ascending, texts in order of appearance; rows without the label last.
    places = [places_of(row.labels[label] for row in chosen if label in row.labels) for label in known]
    for row in sorted(chosen, key=lambda row: order_of([row.labels.get(label) for label in known], places)):
        scores = [score_of(row, column) for column in columns]
        if any(score is not None for score in scores):
            cells.append((*((row.name,) if is_named else ()), *(row.labels.get(label) for label in labels), *scores))
    return Table("", "", "", (*names, *(column.heading for column in columns)), tuple(cells), num_names=len(names))


def _repeated_labels(level: Level) -> set[str]:
    """Labels that repeat another one: tokens beside steps, parameters beside sizes, steps if all runs are complete."""
    names = set(varying_labels(level.rows))
    found = {name for name, other in ((TOKENS, STEP), (PARAMETERS, SIZE)) if {name, other} <= names}
    if all(row.labels.get(STEP) == row.labels.get(BUDGET) for row in level.rows):
        found.add(STEP)
    return found


def study_table(models: Sequence[StudyModel], level: Level | None, *, name: str, title: str) -> Table:
    """A row for each model, in the order of the tree; `level` has the scores of models, if there are any."""
    families = {} if level is None else level.families
    rows = {} if level is None else {row.name: row for row in level.rows}
    cells = []
    for model in models:
        begins = None if model.giver is None else f"{model.giver} at {model.fork:,}"
        scores = [
            None if level is None or model.name not in rows else mean_score(level, rows[model.name], tasks)
            for tasks in families.values()
        ]
        cells.append(
            (model.shown, begins, model.total_steps, model.own_steps, model.tokens / 1e9, model.hours, *scores)
        )
    total, own = (sum(steps) for steps in zip(*((each.total_steps, each.own_steps) for each in models), strict=True))
    return Table(
        name,
        title,
        f"{own:,} steps are trained instead of {total:,}. Tokens are those of all steps, padding included; "
        "hours those of a model's own steps.",
        ("model", "forked from", "total steps", "own steps", "tokens (billions)", "hours", *map(family_name, families)),
        tuple(cells),
        num_names=2,
        decimals={"hours": 2},
    )


def mean_score(level: Level, row: ScoreRow, tasks: Sequence[TaskInfo]) -> MeanScore | None:
    """Mean score of a row over tasks; None unless it has scores for each."""
    found = row.estimate(tasks)
    if found is None:
        return None
    is_one = level.seeds is Seeds.FINE_TUNING and len(tasks) == 1
    floor = majority_of(tasks)
    marks = UNFINISHED if any(task.name in row.unfinished for task in tasks) else ""
    marks += NOTHING_LEARNT if floor is not None and found.mean <= floor + _ROUNDING else ""
    return MeanScore(found, row.name, tasks[0].name if is_one else None, marks)


def _note(level: Level) -> str:
    once = " Each model was pretrained once: the intervals are those of fine-tuning alone."
    return (
        f"Test scores in percent: mean and 95 % interval over {level.seeds}, by Student's t; the highest mean of a "
        "column is bold. Of several learning rates, one was chosen on validation scores. An average is the unweighted "
        f"mean of the data sets, and only given where all were run.{once if level.seeds is Seeds.FINE_TUNING else ''} "
        "All seeds answer the same test items: how far other items would move a score is in no interval."
    )


def _remarks(table: Table, level: Level, columns: Sequence[Column]) -> Iterator[str]:
    """Sentences on the numbers of seeds and test items, and on the marks."""
    [*nums] = table.nums
    if len(nums) == 1 and nums != [1]:
        yield f"Each score is over {nums[0]} {level.seeds}."
    sizes = [f"{task.name} {task.num_test:,}" for column in columns for task in column.tasks if task.num_test]
    if sizes:
        yield f"Test items: {', '.join(dict.fromkeys(sizes))}."
    alone = [row.name for row in level.rows if row.seeds is Seeds.NONE]
    if alone:
        yield f"Without a pretraining seed, and so one observation each: {', '.join(alone)}."
    marks = {mark for score in table.scores for mark in score.marks}
    if any(isinstance(cell, MeanScore) and cell.is_reference for row in table.rows for cell in row):
        below = f"; {NOTHING_LEARNT} marks scores that are not above it" if NOTHING_LEARNT in marks else ""
        yield f'"{_READS_NO_TEXT}" is the best answer of that kind, such as the most frequent label{below}.'
    if UNFINISHED in marks:
        yield (
            f"{UNFINISHED}: not all learning rates are finished, so that another one might be chosen; missing-runs "
            "lists what is missing."
        )
