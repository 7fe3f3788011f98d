"""What a grid shows while it runs, from its files: lines, counts, and a table."""

import json
from io import StringIO

import pytest
from rich.console import Console

from tests.support.grids import write_grid
from toolkit.experiments.grid.cells import Cell, Score
from toolkit.experiments.grid.declaration import load_grid
from toolkit.experiments.grid.folder import GridFolder
from toolkit.experiments.grid.plan import GridPlan
from toolkit.experiments.grid.view import GridView
from toolkit.work.claims import Claims, Item, Job
from toolkit.work.show import Pace

CELLS = [Cell("m", task, "sc", seed, 1e-3) for task in ("a", "b") for seed in (0, 1)]
VALIDATION = dict(zip(CELLS, (0.5, 0.25, 0.75, 0.5), strict=True))


def score(cell):
    return Score(**cell._asdict(), metric="accuracy", validation={"accuracy": VALIDATION[cell]}, test={"accuracy": 0.0})


class Cells(Job):
    """Cells of a grid that ends them as it is told."""

    def __init__(self, folder):
        super().__init__(folder.path / ".work", [Item(str(cell)) for cell in CELLS[1:]])
        self.folder.mkdir(parents=True)
        self.grid = folder

    def is_done(self, item):
        return False

    def begin(self, number):
        claims = [Claims(self) for _ in range(number)]
        return claims, [each.claim() for each in claims]

    def finish(self, cell, claims, message=None):
        place = self.grid.place(cell)
        place.path.mkdir(parents=True, exist_ok=True)
        if message is None:
            place.result_file.write_text(json.dumps(score(cell).model_dump()))
        claims.end(claims.items[str(cell)], message)


@pytest.fixture
def job(tmp_path):
    return Cells(GridFolder(tmp_path))


def view_of(job):
    """An hour passes at each look at the clock."""
    view, hours = GridView(job.grid, CELLS, {CELLS[0]: score(CELLS[0])}, job), iter(range(0, 3600 * 100, 3600))
    view.pace = Pace(view.num_done, clock=lambda: next(hours))
    return view


def told(view):
    view.look()
    return [line.text for line in view.news()]


def test_lines_tell_score_counts_rate_and_what_is_left(job):
    view = view_of(job)
    (first, second), _ = job.begin(2)
    assert told(view) == []
    job.finish(CELLS[1], first)
    first.claim()
    # One cell of this command in two hours; what was done before is no work.
    assert told(view) == [
        "m a lr 0.001 seed 1: validation accuracy 0.2500; 2 of 4 cells done, 2 running, 0 cells/h, 4:00:00 left"
    ]
    job.finish(CELLS[2], second)
    job.finish(CELLS[3], first, "broken")
    lines = told(view)
    assert lines[0].startswith("m b lr 0.001 seed 1 failed: broken; 3 of 4 cells done, 0 running, 1 failed, ")
    assert lines[1].startswith("m b lr 0.001 seed 0: validation accuracy 0.7500, best of b so far; 3 of 4")
    assert told(view) == []


def test_the_same_failure_is_told_in_full_once(job):
    view, (claims, *_) = view_of(job), job.begin(1)[0]
    for cell in CELLS[2:]:
        job.finish(cell, claims, "train.tsv: no column 'label'\nTraceback (most recent call last):")
    assert sorted(line.split(";")[0].partition("failed")[2] for line in told(view)) == [
        " as the one before",
        ": train.tsv: no column 'label'",
    ]


def test_a_cell_that_failed_and_is_done_since_has_not_failed(job):
    view, (claims, *_) = view_of(job), job.begin(1)[0]
    job.finish(CELLS[1], claims, "broken")
    assert len(told(view)) == 1
    next(job.folder.glob("*.error")).unlink()
    assert told(view) == []
    job.finish(CELLS[1], claims)
    assert "validation accuracy" in told(view)[0]
    assert view.failed == {}


def test_a_grid_is_watched_from_outside_until_nobody_runs_it(tmp_path, toolkit):
    path = write_grid(tmp_path, kinds=("sc",), rates=(1e-3,))
    plan = GridPlan(load_grid(path))
    done, failed = plan.cells
    plan.folder.declaration_file.parent.mkdir()
    plan.folder.declaration_file.write_bytes(path.read_bytes())
    plan.folder.place(done).begin({})
    scores = {"metric": "accuracy", "validation": {"accuracy": 0.5}, "test": {"accuracy": 0.25}}
    plan.folder.place(done).result_file.write_text(json.dumps(scores))
    job = plan.job([failed])
    job.folder.mkdir()
    claims = Claims(job)
    claims.end(claims.claim(), "broken")
    code, out, _ = toolkit("inspect", plan.folder.path, "--watch")
    assert code == 0
    assert "eurobert sc lr 0.001 seed 1 failed: broken; 1 of 2 cells done, 0 running, 1 failed\n" in out
    assert "accuracy 0.5000 (eurobert, lr 0.001)" in out
    code, out, _ = toolkit("inspect", plan.folder.path)
    assert (code, "accuracy 0.5000 (eurobert, lr 0.001)" in out) == (0, True)
    code, _, err = toolkit("inspect", plan.folder.path, "--set", "data.windows=blocks")
    assert (code, f"{plan.folder.path} is a grid. Leave it out" in " ".join(err.split())) == (2, True)
    # A folder in which somebody keeps the file of a grid is none.
    (tmp_path / "grid.toml").write_bytes(path.read_bytes())
    assert toolkit("inspect", tmp_path)[0] == 2


def test_the_table_has_a_row_per_task(job):
    view, (claims, _) = view_of(job), job.begin(2)[0]
    job.finish(CELLS[3], claims, "broken")
    view.look()
    lines = _lines(view, 120)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert rows == [
        ["a", "1/2 done, 1 running", "accuracy 0.5000 (m, lr 0.001)"],
        ["b", "0/2 done, 1 running, 1 failed", ""],
    ]
    assert "best validation score" in lines[1]
    assert "1 of 4 cells done, 2 running, 1 failed, 1 cells/h, 2:00:00 left" in " ".join(lines)


def test_sixty_columns_break_no_word_of_the_table(job):
    view, (claims, _) = view_of(job), job.begin(2)[0]
    job.finish(CELLS[3], claims, "broken")
    view.look()
    words = [word for line in _lines(view, 60) for word in line.strip("│ ┃").split()]
    assert {"validation", "running,", "failed", "accuracy", "0.5000", "(m,", "0.001)"} <= set(words)


def test_a_test_score_is_best_of_nothing(job):
    scores = {cell: score(cell).model_copy(update={"validation": None}) for cell in CELLS}
    view = GridView(job.grid, CELLS, scores, job)
    assert (view.best, len(view.scores)) == ({}, 4)
    assert not [line for line in _lines(view, 120) if "best" in line or "accuracy" in line]


def _lines(view, width):
    screen = Console(width=width, record=True, file=StringIO())
    screen.print(view.picture())
    return screen.export_text().splitlines()
