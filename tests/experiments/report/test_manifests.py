"""Labels from manifests, with numbers computed by hand."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import states_of, write_checkpoint
from tests.support.finished_grids import row, write_finished_grid
from toolkit.checkpoint.manifest import ParentEntry, manifest_bytes, read_manifest
from toolkit.experiments.report.read.manifests import flops_up_to, manifest_labels, other_corpora, with_manifest_labels
from toolkit.experiments.report.read.results import read_results
from toolkit.run.folder import RunFolder


def _line(step: int, tokens: int, *, tokens_per_second: float, flops_per_second: float) -> dict[str, Any]:
    rates = {"tokens_per_second": tokens_per_second, "model_flops_per_second": flops_per_second}
    return {"step": step, "loss": 1.0, "tokens": tokens, **rates}


SHAPE = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 32,
}
LINES = [
    {"step": 0, "eval_loss": {"clm": 9.0}, "tokens": 0},
    _line(10, 1000, tokens_per_second=50.0, flops_per_second=500.0),
    _line(20, 1800, tokens_per_second=40.0, flops_per_second=1200.0),
]


def test_flops_are_tokens_times_flops_per_token() -> None:
    """1,000 tokens of 10 each, 800 of 30 each; a step that no line tells of is unknown."""
    assert flops_up_to(LINES, 10) == pytest.approx(10_000)
    assert flops_up_to(LINES, 20) == pytest.approx(10_000 + 24_000)
    assert flops_up_to(LINES, 15) is None
    assert flops_up_to([], 0) is None
    assert flops_up_to([{"step": 10, "loss": 1.0, "tokens": 5}], 10) is None


def _checkpoint(folder: Path, step: int, **settings: Any) -> Path:
    tokenizer = folder / "no-tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints").mkdir(exist_ok=True)
    whole = {
        "run": {"dir": "run", "seed": 7},
        "model": SHAPE,
        "data": {"train": "corpus", "sequence_length": 4, "min_length": 1},
        "train": {"steps": None, "global_batch_rows": 2},
        "objectives": {"next": {"kind": "clm"}, "mlm": {"kind": "mlm", "mask_ratio": 0.3}},
        # 79 positions of 8 a step: 10 steps.
        "schedule": [{"objective": "next", "tokens": 79}, {"objective": "mlm", "steps": 30}],
        **settings,
    }
    return write_checkpoint(
        folder / "checkpoints", step, states=states_of(step), tokenizer_folder=tokenizer, settings=whole
    )


def test_what_a_manifest_tells(tmp_path: Path) -> None:
    """8 x (32 + 32) for embedding and head; 4 x 64 + 3 x 128 + 2 x 8 for the block; the last norm's 8."""
    checkpoint = _checkpoint(tmp_path / "run", 40)
    assert manifest_labels(read_manifest(checkpoint), RunFolder(tmp_path / "run")) == {
        "training_step": 40, "training_tokens": 40_000, "start": "random", "seed": 7, "parameters": 512 + 656 + 8,
        "objective": "clm+mlm", "clm_share": 0.25, "mask_ratio": 0.3, "budget_steps": 40,
    }  # fmt: skip


def test_a_merge_has_the_labels_of_its_last_checkpoint_and_is_told_apart(tmp_path: Path) -> None:
    manifest = read_manifest(_checkpoint(tmp_path / "run", 40))
    parents = tuple(ParentEntry(path="p", step=step, sha256="0", weight=0.5) for step in (20, 40))
    folder = RunFolder(tmp_path)
    merged = manifest_labels(manifest.model_copy(update={"merged": parents}), folder)
    assert merged == {**manifest_labels(manifest, folder), "merged": 2}
    begun = manifest.model_copy(update={"origin": {"run": "trunk", "step": "40", "merged": "2"}})
    assert manifest_labels(begun, folder)["start"] == "2 merged up to trunk step 40"


def test_a_ramp_of_the_mask_ratio_is_a_label_in_words(tmp_path: Path) -> None:
    ramp = {"start": 0.4, "stop": 0.15, "shape": "cosine"}
    checkpoint = _checkpoint(tmp_path / "run", 40, objectives={"mlm": {"mask_ratio": ramp}, "next": {"kind": "clm"}})
    labels = manifest_labels(read_manifest(checkpoint), RunFolder(tmp_path / "run"))
    assert labels["mask_ratio"] == "0.4 to 0.15, cosine"


def _continued(folder: Path, step: int, origin: dict[str, str], **settings: Any) -> dict[str, Any]:
    """Labels of 40 MLM steps on other weights, with FLOPs: 1,000 x 10 + 800 x 30 for the first 20."""
    schedule = [{"objective": "mlm", "steps": 40}]
    checkpoint = _checkpoint(folder, step, schedule=schedule, init={"from": "gone"}, **settings)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    manifest = read_manifest(checkpoint).model_copy(update={"origin": origin})
    return dict(manifest_labels(manifest, RunFolder(folder)))


def test_a_continued_run_names_its_start_and_counts_from_there(tmp_path: Path) -> None:
    """Which share of all steps was CLM is in the first run's manifest, not in this one."""
    labels = _continued(tmp_path / "run", 20, {"model": "org/llama", "run": "clm-42k", "step": "42000"})
    assert labels == {
        "training_step": 20, "training_tokens": 20_000, "training_flops": pytest.approx(34_000),
        "start": "clm-42k step 42000", "seed": 7, "parameters": 1176, "objective": "mlm", "mask_ratio": 0.3,
    }  # fmt: skip
    whole = _continued(tmp_path / "whole", 40, {"model": "org/llama", "family": "Llama"})
    assert (whole["start"], whole["budget_steps"], "clm_share" in whole) == ("org/llama", 40, False)


def test_a_branch_counts_from_the_first_step_of_its_trunk(tmp_path: Path) -> None:
    """10 of 40 steps were CLM; FLOPs are 20 lines of the trunk and the branch's own."""
    _checkpoint(tmp_path / "trunk", 20)
    (tmp_path / "trunk" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    fork = {"from": str(tmp_path / "trunk" / "checkpoints" / "step-00000020"), "step": 20}
    schedule = [{"objective": "clm", "steps": 10}, {"objective": "mlm", "steps": 30}]
    checkpoint = _checkpoint(tmp_path / "branch", 40, schedule=schedule, fork=fork)
    own = {"step": 40, "loss": 1.0, "tokens": 2_800, "tokens_per_second": 1.0, "model_flops_per_second": 20.0}
    (tmp_path / "branch" / "metrics.jsonl").write_text(json.dumps(own) + "\n")
    labels = manifest_labels(read_manifest(checkpoint), RunFolder(tmp_path / "branch"))
    assert (labels["start"], labels["objective"], labels["clm_share"], labels["budget_steps"]) == (
        "random",
        "clm+mlm",
        0.25,
        40,
    )
    assert labels["training_flops"] == pytest.approx(34_000 + 1_000 * 20)
    # Without the trunk nobody knows what came before.
    shutil.rmtree(tmp_path / "trunk")
    assert "training_flops" not in manifest_labels(read_manifest(checkpoint), RunFolder(tmp_path / "branch"))


def test_an_imported_model_that_was_not_trained_here_has_no_steps(tmp_path: Path) -> None:
    nothing = {"run": {}, "schedule": None, "objectives": {}, "train": {}}
    checkpoint = _checkpoint(tmp_path / "run", 0, **nothing)
    imported = read_manifest(checkpoint).model_copy(update={"origin": {"model": "org/llama", "family": "Llama"}})
    assert manifest_labels(imported, RunFolder(tmp_path / "run")) == {"start": "org/llama", "parameters": 1176}


def test_in_the_middle_of_a_run_the_share_is_that_so_far_and_there_is_no_budget(tmp_path: Path) -> None:
    labels = manifest_labels(read_manifest(_checkpoint(tmp_path / "run", 10)), RunFolder(tmp_path / "run"))
    assert labels["clm_share"] == 1.0
    assert "mask_ratio" not in labels
    assert "budget_steps" not in labels


def test_a_manifest_with_other_settings_tells_less(tmp_path: Path) -> None:
    checkpoint = _checkpoint(tmp_path / "run", 40, schedule="?", model=None, run={})
    labels = manifest_labels(read_manifest(checkpoint), RunFolder(tmp_path / "run"))
    assert labels == {"training_step": 40, "training_tokens": 40_000, "start": "random"}


def test_models_get_their_labels_and_the_grid_files_win(tmp_path: Path) -> None:
    """A run and a checkpoint of it; a folder without a checkpoint, or with a damaged one, tells nothing."""
    run = tmp_path / "run"
    middle = _checkpoint(run, 10)
    _checkpoint(run, 40)
    broken = _checkpoint(tmp_path / "broken", 40)
    (broken / "manifest.json").write_text("{")
    paths = {"whole": str(run), "middle": str(middle), "broken": str(broken), "elsewhere": "org/model"}
    rows = [row(name, "sst2", 0, 0.5) for name in paths]
    grid = write_finished_grid(tmp_path / "grid", rows, paths=paths, labels={"whole": {"clm_share": 0.5, "kind": "x"}})
    found = {model.name: model.labels or {} for model in with_manifest_labels(read_results([grid])).models}
    assert (found["whole"]["clm_share"], found["whole"]["kind"], found["whole"]["training_step"]) == (0.5, "x", 40)
    assert (found["middle"]["clm_share"], found["middle"]["training_step"]) == (1.0, 10)
    assert (found["broken"], found["elsewhere"]) == ({}, {})


def test_models_that_were_trained_on_other_corpora_are_told(tmp_path: Path) -> None:
    """Of one path, too; validation, and a model without a checkpoint of ours, do not count."""
    corpora = {
        "a": {"data.train": "1" * 64, "data.validation": "8" * 64},
        "b": {"schedule.0.data.train": "1" * 64, "data.validation": "9" * 64},
        "c": {"data.train": "2" * 64, "data.validation": "8" * 64},
    }
    paths = {name: str(_checkpoint(tmp_path / name, 40)) for name in corpora}
    for name, found in corpora.items():
        manifest = read_manifest(Path(paths[name])).model_copy(update={"corpora": found})
        (Path(paths[name]) / "manifest.json").write_bytes(manifest_bytes(manifest))

    def told(*names: str) -> str:
        rows = [row(name, "sst2", 0, 0.5) for name in (*names, "elsewhere")]
        folder = tmp_path / f"grid-{'-'.join(names)}"
        return other_corpora(read_results([write_finished_grid(folder, rows, paths={**paths, "elsewhere": "org/m"})]))

    assert told("a", "b") == ""
    whole = "the models were trained on different corpora: a, b (111111111111); c (222222222222)"
    assert told("a", "b", "c") == whole


def test_a_report_from_another_folder_finds_the_models_where_the_grid_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tmp_path / "study"
    study.mkdir()
    monkeypatch.chdir(study)
    write_finished_grid(Path("grids/first"), [row("run", "t", 0, 0.5)], paths={"run": "runs/run"})
    write_checkpoint(study / "runs/run/checkpoints", 8, states=states_of(8), tokenizer_folder=study / "grids")
    for place, grid in ((study, "grids/first"), (tmp_path, "study/grids/first"), (study / "grids", "first")):
        monkeypatch.chdir(place)
        (model,) = with_manifest_labels(read_results([Path(grid)])).models
        assert (model.labels or {})["training_step"] == 8
    # Moved away from where it was started: nothing is guessed.
    (study / "grids").rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    (model,) = with_manifest_labels(read_results([Path("elsewhere/first")])).models
    assert model.path == "runs/run"
