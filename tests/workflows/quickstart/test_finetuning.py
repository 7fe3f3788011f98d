"""Fine-tuning runs in processes side by side: all are run, each once, and one that fails ends the stage by name."""

import json
from pathlib import Path

import pytest

from tests.support.hf_encoders import save_encoder
from toolkit.core.errors import UserError
from toolkit.execution.work import Work
from toolkit.workflows.quickstart import finetuning as quickstart_finetuning
from toolkit.workflows.quickstart.finetuning import FinetuningRun, finetune_side_by_side, open_runner


def _runs(folder: Path, rates):
    return [
        FinetuningRun(Path("encoder"), {}, folder / str(seed), {"seed": seed, "learning_rate": rate}, "random")
        for seed, rate in enumerate(rates)
    ]


@pytest.fixture(autouse=True)
def _played(monkeypatch):
    monkeypatch.setattr(quickstart_finetuning, "_RUNNER", "tests.support.played_runs:open_played_runner")
    monkeypatch.setattr(quickstart_finetuning.os, "sched_getaffinity", lambda process: set(range(4)))


def test_runs_share_the_cores(tmp_path):
    runs = _runs(tmp_path, [1e-3, 1e-3])
    finetune_side_by_side(runs, logs=tmp_path / "logs")
    places = [json.loads((run.output / "place").read_text()) for run in runs]
    assert len({process for process, _ in places}) == 2
    assert {threads for _, threads in places} == {"2"}


def test_more_runs_than_cores_all_run(tmp_path):
    runs = _runs(tmp_path, [1e-3] * 5)
    finetune_side_by_side(runs, logs=tmp_path / "logs")
    places = [json.loads((run.output / "place").read_text()) for run in runs]
    assert {threads for _, threads in places} == {"1"}


@pytest.mark.parametrize(("rate", "reason"), [(0.0, "no text in the file"), (-1.0, "exit code 7; see .*logs")])
def test_a_run_that_fails_ends_the_stage(tmp_path, rate, reason):
    with pytest.raises(UserError, match=rf"the fine-tuning run .* \(random weights\) failed: .*{reason}"):
        finetune_side_by_side(_runs(tmp_path, [rate]), logs=tmp_path / "logs")


def test_a_run_is_trained_as_it_says(tmp_path, monkeypatch):
    """The real runner, in this process."""
    monkeypatch.setattr("toolkit.core.allocator.keep_freed_memory", lambda: None)
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\nThe old miller\t0\nA young fox\t1\n")
    settings = {"seed": 3, "learning_rate": 1e-3, "steps": 1, "batch_rows": 2}
    files = dict.fromkeys(("train", "validation", "test"), rows)
    run = FinetuningRun(save_encoder("eurobert", tmp_path / "model"), files, tmp_path / "out", settings, "random")
    open_runner()(Work(run.name, run))
    result = json.loads((run.output / "result.json").read_text())
    assert (result["initialization"], result["validation"]) == ("random", result["test"])
    assert {name: result[name] for name in ("seed", "learning_rate", "steps")} == {
        name: settings[name] for name in ("seed", "learning_rate", "steps")
    }
