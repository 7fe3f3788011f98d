"""Fine-tuning runs in processes side by side: all are run, each once, and one that fails ends the stage by name."""

import json
import os
from pathlib import Path

import pytest

from toolkit.core.errors import UserError
from toolkit.workflows.quickstart import finetuning as quickstart_finetuning
from toolkit.workflows.quickstart.finetuning import FinetuningRun, finetune_side_by_side


def open_played_runner():
    """A worker that writes down where it ran; a run with learning rate 0 fails, one with -1 ends its process."""

    def finetune_run(work):
        run = work.payload
        if run.settings["learning_rate"] < 0:
            os._exit(7)
        if run.settings["learning_rate"] == 0:
            raise UserError("no text in the file")
        run.output.mkdir()
        (run.output / "place").write_text(json.dumps([os.getpid(), os.environ["OMP_NUM_THREADS"]]))

    return finetune_run


def _runs(folder: Path, rates):
    return [
        FinetuningRun(Path("encoder"), {}, folder / str(seed), {"seed": seed, "learning_rate": rate}, "random")
        for seed, rate in enumerate(rates)
    ]


@pytest.fixture(autouse=True)
def _played(monkeypatch):
    monkeypatch.setattr(quickstart_finetuning, "_RUNNER", f"{__name__}:open_played_runner")
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
