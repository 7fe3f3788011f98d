"""What a plan gives to the workers, and which finished cells it takes; nothing is trained."""

import json
from pathlib import Path

import pytest

from tests.support.grids import write_grid
from toolkit.core.errors import SettingsError, UserError
from toolkit.experiments import load_grid
from toolkit.workflows.grid_plan import GridPlan


def test_a_job_has_the_seed_and_the_rate_of_its_cell(tmp_path: Path) -> None:
    plan = GridPlan(load_grid(write_grid(tmp_path, kinds=("sc",), seeds=(3, 5))))
    jobs = [plan.job(cell) for cell in plan.cells]
    settings = [(job.task.settings.seed, job.task.settings.learning_rate) for job in jobs]
    assert settings == [(3, 1e-3), (5, 1e-3), (3, 1e-2), (5, 1e-2)]
    assert [(cell.seed, cell.learning_rate) for cell in plan.cells] == settings
    assert len({job.task.output for job in jobs}) == 4
    recorded = [job.task.record["settings"] for job in jobs]
    assert [(each["seed"], each["learning_rate"]) for each in recorded] == settings


def test_a_finished_cell_is_taken_only_as_it_was_declared(tmp_path: Path) -> None:
    """Of two cells one has finished; then the grid's steps change."""
    plan = GridPlan(load_grid(write_grid(tmp_path, kinds=("sc",), rates=(1e-3,))))
    first, _ = plan.cells
    plan.place(first).begin(plan.record(first))
    scores = {"metric": "accuracy", "validation": {"accuracy": 0.5}, "test": {"accuracy": 0.25}}
    (plan.place(first).path / "result.json").write_text(json.dumps(scores))
    assert {cell: score.test for cell, score in plan.finished().items()} == {first: {"accuracy": 0.25}}
    changed = GridPlan(load_grid(write_grid(tmp_path, kinds=("sc",), rates=(1e-3,), steps=3)))
    with pytest.raises(SettingsError, match=r"settings\.steps was 2 and is 3 \(1 cell: eurobert/sc/lr-0.001/seed-0\)"):
        changed.finished()


@pytest.mark.parametrize(
    "result",
    [
        {"metric": "accuracy", "validation": None, "test": {"f1": 0.5}},
        {"metric": "accuracy", "validation": {"f1": 0.5}, "test": {"accuracy": 0.5}},
        {"metric": "accuracy", "validation": None, "test": {"accuracy": "high"}},
        {"metric": "accuracy", "validation": None, "test": {"accuracy": float("nan")}},
        {"metric": 5, "validation": None, "test": {}},
        {"metric": "accuracy", "validation": None, "test": [0.5]},
    ],
)
def test_a_result_without_scores_is_damaged(tmp_path: Path, result: dict[str, object]) -> None:
    plan = GridPlan(load_grid(write_grid(tmp_path, kinds=("sc",), rates=(1e-3,))))
    first, _ = plan.cells
    plan.place(first).begin(plan.record(first))
    (plan.place(first).path / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match=r"result\.json is damaged .* Remove .*seed-0: the cell is run again"):
        plan.finished()
