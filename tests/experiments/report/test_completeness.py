"""What a grid file declares and has no result is told: on the terminal, at scores and rates, and run by run."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.finished_grids import row, write_finished_grid
from toolkit.experiments.report import write_report
from toolkit.experiments.report.compare.formats import markdown
from toolkit.experiments.report.compare.levels import model_level
from toolkit.experiments.report.compare.score_tables import score_tables
from toolkit.experiments.report.compare.tables import missing_table, rates_table
from toolkit.experiments.report.read.completeness import MissingReason, missing_summary
from toolkit.experiments.report.read.results import Results, read_results

RATES, SEEDS = [1e-5, 1e-4, 1e-3], [0, 1]


def _rows(*models: str) -> list[dict[str, Any]]:
    return [row(model, "sst2", seed, 0.8 + rate, rate=rate) for model in models for rate in RATES for seed in SEEDS]


def _cell(folder: Path, model: str, rate: float, seed: int) -> Path:
    cell = folder / f"cells/{model}/sst2/lr-{rate!r}/seed-{seed}"
    cell.mkdir(parents=True)
    return cell


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Of a, a seed of 1e-3 failed; of b, a seed of 1e-3 diverged and the other did not run; c has not begun."""
    rows = [
        entry
        for entry in _rows("a", "b")
        if entry["learning_rate"] < 1e-3 or (entry["model"], entry["seed"]) == ("a", 0)
    ]
    labels: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "c": {}}
    folder = write_finished_grid(tmp_path / "grid", rows, labels=labels, learning_rates=RATES, seeds=SEEDS)
    selected = folder / "selected.json"
    selected.write_text(selected.read_text().replace("0.001", "0.0001"))
    (_cell(folder, "a", 1e-3, 1) / "error.txt").write_text("Traceback\nOSError: no space left\n")
    (_cell(folder, "b", 1e-3, 0) / "diverged.json").write_text('{"message": "the weights have diverged"}')
    return folder


def _results(folder: Path) -> Results:
    return read_results([folder])


def test_each_missing_run_has_its_reason(grid: Path) -> None:
    results = _results(grid)
    assert {(*one.cell.group, one.cell.learning_rate, one.cell.seed): one.reason for one in results.missing} == {
        ("a", "sst2", 1e-3, 1): MissingReason.FAILED,
        ("b", "sst2", 1e-3, 0): MissingReason.DIVERGED,
        ("b", "sst2", 1e-3, 1): MissingReason.NOT_RUN,
        **{("c", "sst2", rate, seed): MissingReason.NOT_RUN for rate in RATES for seed in SEEDS},
    }
    assert results.completeness == "9 of 18 fine-tuning runs"
    assert missing_summary(results.missing) == "9 runs have no result: 7 not run, 1 failed, 1 diverged"
    table = missing_table(results)
    assert table is not None
    lines = markdown(table).splitlines()
    assert lines[4:7] == [
        "| a | sst2 | 0.001 | 1 | failed | OSError: no space left |",
        "| b | sst2 | 0.001 | 0 | diverged | the weights have diverged |",
        "| b | sst2 | 0.001 | 1 | not run |  |",
    ]


def test_a_running_grid_has_the_rates_of_what_has_finished(grid: Path) -> None:
    """The command writes its choice at its start and at its end; another rate may have finished since."""
    chosen = json.loads((grid / "selected.json").read_text())
    chosen["a"]["sst2"]["learning_rate"] = 1e-3
    for content in ({}, chosen):
        (grid / "selected.json").write_text(json.dumps(content))
        assert _results(grid).rates == {("a", "sst2"): 1e-4, ("b", "sst2"): 1e-4}


def test_a_choice_among_too_few_rates_is_marked(grid: Path) -> None:
    """What diverged would not have been chosen; what failed might have been."""
    results = _results(grid)
    level = model_level(results)
    table = next(table for table in score_tables(level) if table.name == "models-sc")
    text = markdown(table)
    assert "| a | **80.01 \u00b1 0.00 \u2020** |" in text
    assert "| b | **80.01 \u00b1 0.00** |" in text
    assert "\u2020: not all learning rates are finished" in text
    lines = markdown(rates_table(results, level)).splitlines()
    assert lines[4:6] == ["| a | 0.0001 (1 rate unfinished) |", "| b | 0.0001 |"]


def test_the_terminal_and_the_page_tell(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = write_report([grid])
    said = " ".join(capsys.readouterr().out.split())
    assert "9 runs have no result: 7 not run, 1 failed, 1 diverged, see tables/missing-runs.md" in said
    assert "9 of 18 fine-tuning runs of 2 models" in said
    page = (output / "report.html").read_text()
    assert "9 of 18 fine-tuning runs" in page
    assert "OSError: no space left" in page


def test_a_finished_grid_tells_nothing(tmp_path: Path) -> None:
    folder = write_finished_grid(tmp_path, _rows("a"), learning_rates=RATES, seeds=SEEDS)
    results = _results(folder)
    assert (results.missing, results.unfinished_rates, missing_table(results)) == ((), {}, None)
    assert results.completeness == "6 fine-tuning runs"


def test_runs_of_several_versions_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    makers = [{"toolkit": "0.1.0", "dtype": "fp32"}, {"toolkit": "0.2.0", "dtype": "fp32"}, None]
    rows = [row("a", "sst2", seed, 0.8, made_by=maker) for seed, maker in enumerate(makers)]
    output = write_report([write_finished_grid(tmp_path, rows)])
    assert "runs of one task were made by 3 combinations" in " ".join(capsys.readouterr().out.split())
    assert "toolkit 0.2.0, dtype fp32" in (output / "report.html").read_text()


def test_a_task_of_another_dtype_is_no_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Minimal pairs are fp32 on a machine that trains in bf16."""
    makers = {"sst2": {"toolkit": "0.1.0", "dtype": "bf16"}, "blimp": {"toolkit": "0.1.0", "dtype": "fp32"}}
    rows = [row("a", task, 0, 0.8, made_by=maker) for task, maker in makers.items()]
    write_report([write_finished_grid(tmp_path, rows)])
    assert "combinations" not in capsys.readouterr().out
