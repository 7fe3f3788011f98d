"""What a plan gives to the workers, and which finished cells it takes; nothing is trained."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import write_tiny_run
from tests.support.grids import write_data, write_grid
from tests.support.hf_decoders import edit_json
from tests.support.hf_encoders import save_encoder
from tests.support.sources import ROOT
from toolkit.checkpoint.manifest import read_manifest
from toolkit.checkpoint.retention import drop_moments
from toolkit.core.cache import KnownHashes
from toolkit.core.errors import SettingsError, UserError
from toolkit.experiments.finetune import finetune
from toolkit.experiments.grid.cells import Diverged, grid_counts
from toolkit.experiments.grid.declaration import PAPER_RATES, ModelEntry, load_grid
from toolkit.experiments.grid.inputs import HubAccess, ResolvedModel, resolve_model
from toolkit.experiments.grid.plan import GridPlan
from toolkit.experiments.grid.program import show_grid
from toolkit.finetuning import Split, get_task
from toolkit.finetuning.named.datasets import DATASETS, NamedDataset


def test_an_item_has_the_seed_and_the_rate_of_its_cell(tmp_path: Path) -> None:
    plan = GridPlan(load_grid(write_grid(tmp_path, kinds=("sc",), seeds=(3, 5))))
    items = plan.job(plan.cells).items
    settings = [(item.payload.task.settings.seed, item.payload.task.settings.learning_rate) for item in items]
    assert settings == [(3, 1e-3), (5, 1e-3), (3, 1e-2), (5, 1e-2)]
    assert [(cell.seed, cell.learning_rate) for cell in plan.cells] == settings
    assert len({item.payload.cell.path for item in items}) == 4
    recorded = [item.payload.record["settings"] for item in items]
    assert [(each["seed"], each["learning_rate"]) for each in recorded] == settings


def test_a_finished_cell_is_taken_only_as_it_was_declared(tmp_path: Path) -> None:
    """Of two cells one has finished; then the grid's steps change."""
    plan = GridPlan(load_grid(write_grid(tmp_path, kinds=("sc",), rates=(1e-3,))))
    first, _ = plan.cells
    plan.folder.place(first).begin(plan.task(first).record)
    scores = {"metric": "accuracy", "validation": {"accuracy": 0.5}, "test": {"accuracy": 0.25}}
    (plan.folder.place(first).path / "result.json").write_text(json.dumps(scores))
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
    plan.folder.place(first).begin(plan.task(first).record)
    (plan.folder.place(first).path / "result.json").write_text(json.dumps(result))
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
    settings = plan.task(plan.cells[0]).task.settings
    assert settings.num_steps(24) == steps
    said = "[[task]] ner: 1 pass over the training file of conll2003" in " ".join(capsys.readouterr().out.split())
    assert said == bool(of_the_grid)


def test_a_task_names_the_metric_that_chooses(tmp_path: Path) -> None:
    path = write_grid(tmp_path, kinds=("sc",))
    path.write_text(path.read_text() + "metric = 'mcc'\n")
    plan = GridPlan(load_grid(path))
    assert plan.task(plan.cells[0]).record["settings"]["metric"] == "mcc"
    path.write_text(path.read_text().replace("'mcc'", "'mcf'"))
    with pytest.raises(
        SettingsError, match=r"\[\[task\]\] sc: unknown metric 'mcf' .* 'mcc'\? Choose one of: accuracy, f1_macro"
    ):
        GridPlan(load_grid(path))


def test_an_unknown_metric_is_found_before_a_data_set_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.finetuning.named.datasets.Hub", lambda: pytest.fail("the hub is asked"))
    path = write_grid(tmp_path, kinds=())
    path.write_text(f"{path.read_text()}\n[[task]]\nname = 'named'\nkind = 'sc'\ndataset = 'sst2'\nmetric = 'mcf'\n")
    for hub in HubAccess:
        with pytest.raises(SettingsError, match=r"\[\[task\]\] named: unknown metric 'mcf'"):
            GridPlan(load_grid(path), hub=hub)
    settings = get_task("sc").Settings(metric="mcf")
    with pytest.raises(SettingsError, match="unknown metric 'mcf'"):
        finetune("sc", tmp_path / "eurobert", output=tmp_path / "alone", dataset="sst2", settings=settings)


@pytest.mark.parametrize(
    ("old", "first", "second", "trainings"),
    [
        ("batch_rows = 4\n", "", "batch_rows = 32\n", 4),
        ("/train.", "/train.", "/./train.", 4),
        ("batch_rows = 4\n", "", "batch_rows = 8\n", 8),
    ],
)
def test_trainings_are_counted_as_they_are_planned(
    tmp_path: Path, old: str, first: str, second: str, trainings: int
) -> None:
    """Of two tasks of one file that spell it, or a default, otherwise; and of two that differ."""
    path = write_grid(tmp_path, kinds=("sc",))
    head, task = path.read_text().split("[[task]]\n")
    twins = [task.replace(old, first), task.replace(old, second).replace("name = 'sc'", "name = 'twin'")]
    path.write_text("[[task]]\n".join([head, *twins]))
    plan = GridPlan(load_grid(path))
    assert (len(plan.cells_by_training), grid_counts(plan.grid)["trainings"]) == (trainings, trainings)


def test_a_diverged_cell_is_tried_again_where_it_is_declared_otherwise(tmp_path: Path) -> None:
    given: dict[str, Any] = {"kinds": ("sc",), "rates": (1e30,), "seeds": (0,)}
    plan = GridPlan(load_grid(write_grid(tmp_path, **given)))
    (cell,) = plan.cells
    plan.folder.place(cell).begin(plan.task(cell).record)
    plan.folder.place(cell).diverge("the weights have diverged", made_by={"torch": "2.13.0"})
    assert plan.finished() == {cell: Diverged(cell, "the weights have diverged", {"torch": "2.13.0"})}
    changed = GridPlan(load_grid(write_grid(tmp_path, **given, steps=3)))
    assert changed.finished() == {}
    plan.folder.place(cell).begin(plan.task(cell).record)
    assert plan.finished() == {}, "it has begun again"


def test_the_papers_grid_is_resolved_without_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """360 cells; three retrieval sets train on the same pairs."""
    monkeypatch.setattr("toolkit.finetuning.named.datasets.Hub", lambda: pytest.fail("the hub is asked"))
    text = (ROOT / "docs/examples/paper-finetuning/grid.toml").read_text()
    encoder = save_encoder("eurobert", tmp_path / "encoder")
    path = tmp_path / "grid.toml"
    path.write_text(text.replace('"runs/clm-25"', f'"{encoder}"').replace('"grids/paper"', f'"{tmp_path / "out"}"'))
    plan = GridPlan(load_grid(path), hub=HubAccess.CACHED)
    assert (len(plan.cells), len(plan.cells_by_training)) == (360, 300)
    assert grid_counts(plan.grid) == {"models": 1, "tasks": 12, "cells": 360, "trainings": 300}
    assert sorted(plan.unfetched) == sorted(f"data set {name}" for name in DATASETS if "nanobeir" not in name)
    assert {cell.learning_rate for cell in plan.cells} == set(PAPER_RATES)
    assert {cell.seed for cell in plan.cells} == {0, 1, 2, 3, 4}
    settings = {cell.task: plan.task(cell).record["settings"] for cell in plan.cells}
    assert {own["protocol"] for own in settings.values()} == {"paper"}
    assert {own["steps"] for own in settings.values()} == {1000}
    assert {task for task, own in settings.items() if own["epochs"] == 1} == {"CoNLL-2003", "UNER"}
    assert plan.finished() == {}


def test_a_dry_run_says_what_would_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("toolkit.finetuning.named.datasets.Hub", lambda: pytest.fail("the hub is asked"))
    path = write_grid(tmp_path, kinds=("sc",))
    path.write_text(path.read_text() + "[[task]]\nname = 'named'\nkind = 'sc'\ndataset = 'sst2'\n")
    path.write_text(path.read_text() + "[[model]]\nname = 'other'\npath = 'nobody/nothing'\n")
    show_grid(load_grid(path))
    said = capsys.readouterr().out
    assert "16 cells (2 models, 2 tasks), 0 done, 16 would run" in said
    assert "would be fetched from the Hugging Face hub first: data set sst2, model nobody/nothing\n" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model_type", ["eurobert", "sl_model"])
def test_a_model_of_the_hub_has_its_commit_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    """Offline, as on a node of a cluster; models of the paper name code, which is not run."""
    commit, repository = "0123456789abcdef" * 2 + "01234567", tmp_path / "cache" / "models--ORG--NAME"
    snapshot = save_encoder("eurobert", repository / "snapshots" / commit)
    edit_json(snapshot / "config.json", model_type=model_type)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    path = write_grid(tmp_path, kinds=("sc",))
    path.write_text(path.read_text() + "[[model]]\nname = 'other'\npath = 'ORG/NAME'\n")
    for hub in HubAccess:
        plan = GridPlan(load_grid(path), hub=hub)
        plan.check_models(plan.cells)
        assert plan.unfetched == []
        contents = {plan.task(cell).model.entry.name: plan.task(cell).model.contents for cell in plan.cells}
        assert contents["other"] == {"commit": commit}


def test_a_checkpoint_is_the_same_without_its_moments(tmp_path: Path) -> None:
    """As a run leaves it under `checkpoint.keep_weights_only` while a grid is at work."""
    root = write_tiny_run(tmp_path, steps=(20, 40)) / "checkpoints"
    entry = ModelEntry(name="a", path=str(root / "step-00000020"))

    def found() -> ResolvedModel:
        return resolve_model(entry, tmp_path / "exports", hub=HubAccess.CACHED, known=KnownHashes())

    before = found()
    drop_moments(root, 1)
    assert (found(), read_manifest(root / "step-00000020").has_moments) == (before, False)


def test_a_sentence_transformer_is_identified_by_its_pooling_too(tmp_path: Path) -> None:
    for name in ("config.json", "modules.json", "1_Pooling/config.json", "onnx/model.onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    entry = ModelEntry(name="a", path=str(tmp_path))
    found = resolve_model(entry, tmp_path / "exports", hub=HubAccess.CACHED, known=KnownHashes())
    assert found.contents is not None
    assert set(found.contents) == {"config.json", "modules.json", "1_Pooling/config.json"}
