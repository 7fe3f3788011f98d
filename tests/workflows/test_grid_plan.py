"""What a plan gives to the workers, and which finished cells it takes; nothing is trained."""

import json
from pathlib import Path

import pytest

from tests.support.grids import write_data, write_grid
from toolkit.core.errors import SettingsError, UserError
from toolkit.experiments import load_grid
from toolkit.finetuning import Split
from toolkit.finetuning.named.datasets import NamedDataset
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


@pytest.mark.parametrize(
    ("of_the_grid", "of_the_task", "steps"), [("", "", 6), ("steps = 1000", "", 6), ("", "steps = 1000", 1000)]
)
def test_the_grids_steps_leave_a_sets_own_number_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    of_the_grid: str,
    of_the_task: str,
    steps: int,
) -> None:
    """The paper trains on CoNLL-2003 for one pass, and for 1,000 steps on nearly everything else."""
    write_data(tmp_path / "data")
    files = dict(zip(Split, (tmp_path / "data" / f"{name}.conll" for name in ("train", "dev", "test")), strict=True))
    monkeypatch.setattr(NamedDataset, "fetch", lambda *_: files)
    path = write_grid(tmp_path, kinds=())
    text = path.read_text().replace("steps = 2\n", f"protocol = 'paper'\n{of_the_grid}\n")
    path.write_text(
        f"{text}\n[[task]]\nname = 'ner'\nkind = 'tc'\ndataset = 'conll2003'\nbatch_rows = 4\n{of_the_task}\n"
    )
    plan = GridPlan(load_grid(path))
    settings = plan.job(plan.cells[0]).task.settings
    assert settings.num_steps(24) == steps
    said = "[[task]] ner: 1 pass over the training file of conll2003" in " ".join(capsys.readouterr().out.split())
    assert said == bool(of_the_grid)


def test_a_task_names_the_metric_that_chooses(tmp_path: Path) -> None:
    path = write_grid(tmp_path, kinds=("sc",))
    path.write_text(path.read_text() + "metric = 'mcc'\n")
    plan = GridPlan(load_grid(path))
    assert plan.record(plan.cells[0])["settings"]["metric"] == "mcc"
    path.write_text(path.read_text().replace("'mcc'", "'mcf'"))
    with pytest.raises(
        SettingsError, match=r"\[\[task\]\] sc: unknown metric 'mcf' .* 'mcc'\? Choose one of: accuracy, f1_macro"
    ):
        GridPlan(load_grid(path))
