from io import StringIO

from rich.console import Console
from rich.live import Live

from toolkit.execution.work import Failed, Finished, Lost
from toolkit.experiments.grid.cells import Cell, Score
from toolkit.experiments.grid.display import Display, GridTally, tally_table

CELLS = [Cell("m", task, "sc", seed, 1e-3) for task in ("a", "b") for seed in (0, 1)]
VALIDATION = dict(zip(CELLS, (0.5, 0.25, 0.75, 0.5), strict=True))


def score(cell):
    return Score(**cell._asdict(), metric="accuracy", validation={"accuracy": VALIDATION[cell]}, test={"accuracy": 0.0})


def settle(event):
    return score(event.key) if isinstance(event, Finished) else None


def make_tally():
    """An hour passes at each look at the clock."""
    hours = iter(range(0, 3600 * 100, 3600))
    return GridTally(
        CELLS,
        {CELLS[0]: score(CELLS[0])},
        settle=settle,
        clock=lambda: next(hours),
    )


def test_lines_tell_score_counts_rate_and_what_is_left():
    tally, lines = make_tally(), []
    display = Display(tally, lines.append)
    for worker, cell in enumerate(CELLS[1:3]):
        display.on_start(worker, cell)
    display.on_event(Finished(0, CELLS[1]))
    display.on_start(0, CELLS[3])
    display.on_look()
    # One cell of this command in an hour; what was done before is no work.
    assert lines == [
        "m a lr 0.001 seed 1: validation accuracy 0.2500; 2 of 4 cells done, 2 running, 1 cells/h, 2:00:00 left"
    ]
    lines.clear()
    display.on_event(Finished(1, CELLS[2]))
    display.on_event(Lost(0, CELLS[3], "signal 9"))
    display.on_event(Failed(0, CELLS[3], "broken"))
    display.on_look()
    assert lines[0].startswith("m b lr 0.001 seed 0: validation accuracy 0.7500, best of b so far; 3 of 4")
    assert lines[1].startswith("m b lr 0.001 seed 1: its worker ended by signal 9; it is run again; ")
    assert lines[2].startswith("m b lr 0.001 seed 1 failed: broken; 3 of 4 cells done, 0 running, 1 failed, ")


def test_the_same_failure_is_told_in_full_once():
    tally, lines = make_tally(), []
    display = Display(tally, lines.append)
    for cell in CELLS[2:]:
        display.on_event(Failed(0, cell, "train.tsv: no column 'label'\nTraceback (most recent call last):"))
    display.on_look()
    assert [line.split(";")[0] for line in lines] == [
        "m b lr 0.001 seed 0 failed: train.tsv: no column 'label'",
        "m b lr 0.001 seed 1 failed as the one before",
    ]


def test_the_table_has_a_row_per_task():
    tally = make_tally()
    tally.begin(0, CELLS[1])
    tally.begin(1, CELLS[2])
    tally.add(Failed(1, CELLS[2], "broken"))
    screen = Console(width=120, record=True, file=StringIO())
    screen.print(tally_table(tally))
    shown = screen.export_text()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert rows == [
        ["a", "1/2", "1", "0", "0", "validation accuracy 0.5000 (m, lr 0.001)"],
        ["b", "0/2", "0", "0", "1", ""],
    ]
    assert "1 of 4 cells done, 1 running, 1 failed, 1 cells/h, 2:00:00 left" in shown


def test_the_live_table_ends_with_the_last_counts_and_keeps_failures_above():
    tally, file = make_tally(), StringIO()
    with Live(console=Console(width=120, file=file, force_terminal=True, highlight=False), auto_refresh=False) as live:
        display = Display(tally, live.console.print, live)
        display.on_start(0, CELLS[1])
        display.on_look()
        display.on_event(Finished(0, CELLS[1]))
        display.on_event(Failed(0, CELLS[2], "broken"))
        display.on_look()
    shown = file.getvalue()
    assert shown.index("m b lr 0.001 seed 0 failed: broken") < shown.rindex("2/2")
    assert "2 of 4 cells done, 0 running, 1 failed" in shown
