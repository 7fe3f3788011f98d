"""Models of a study as a table: what each takes, what it begins from, and its scores."""

from collections.abc import Sequence

from toolkit.report.compare.levels import Level, family_name
from toolkit.report.compare.score_tables import mean_score
from toolkit.report.compare.tables import Table
from toolkit.report.read.study import StudyModel


def study_table(models: Sequence[StudyModel], level: Level | None, *, name: str, title: str) -> Table:
    """A row for each model, in the order of the tree; `level` has the scores of models, where there are some."""
    families = {} if level is None else level.families
    rows = {} if level is None else {row.name: row for row in level.rows}
    cells = []
    for model in models:
        begins = None if model.giver is None else f"{model.giver} at {model.fork:,}"
        scores = [
            None if level is None or model.name not in rows else mean_score(level, rows[model.name], tasks)
            for tasks in families.values()
        ]
        cells.append((model.name, begins, model.total_steps, model.own_steps, model.tokens / 1e9, model.hours, *scores))
    total, own = (sum(steps) for steps in zip(*((each.total_steps, each.own_steps) for each in models), strict=True))
    return Table(
        name,
        title,
        f"{own:,} steps are trained in place of {total:,}. Tokens are those of all steps, padding included; "
        "hours those of the own steps.",
        ("model", "forked from", "total steps", "own steps", "tokens (billions)", "hours", *map(family_name, families)),
        tuple(cells),
        num_names=2,
        decimals={"hours": 2},
    )
