"""What `toolkit study` prints without training."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.experiments.study.test_plan import write_study
from tests.support.runs import write_run
from tests.support.sources import ROOT
from toolkit.cli.study import command
from toolkit.core.errors import SettingsError
from toolkit.experiments.grid.declaration import load_grid
from toolkit.experiments.report.read.study import read_study
from toolkit.experiments.study.names import axis_labels
from toolkit.experiments.study.plan import StudyPlan
from toolkit.experiments.study.program import (
    grid_of,
    open_study,
    run_study,
    show_model,
    show_plan,
    show_why,
    study_json,
)
from toolkit.run.load import declare_run

SPLITS = ("train", "validation", "test")


def test_the_papers_comparison_in_figures(capsys):
    show_plan("paper-from-scratch", tflops=396.0)
    printed = capsys.readouterr().out
    for figure in ("15 models", "380,000 steps", "206,000 steps", "46 %", "896.5 B tokens", "GPU hours", "12 of them"):
        assert figure in printed
    assert "├ 610m-clm-3k-mlm40-12k " in printed
    command("paper-from-scratch", dry_run=True, device="h200", mfu=0.4)
    again = capsys.readouterr().out
    assert "GPU hours at 395.6 TFLOP/s a device" in again
    assert " hours of one run" not in again


def test_hours_are_those_that_runs_of_the_study_have_measured(tmp_path, capsys):
    write_run(tmp_path, phase_steps=4)
    source = write_study(tmp_path, ["clm 8", "clm 6"])
    folder = tmp_path / "study" / "runs" / "run-clm-8"
    folder.mkdir(parents=True)
    # Half of its 1,024 positions are filled, and eight steps of the two make an hour.
    line = {"step": 2, "loss": 4.0, "tokens": 512, "tokens_per_second": 8 * 256 / 3600}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    show_plan(source)
    printed = capsys.readouterr().out
    # 14 steps, and 10 as the first four are common.
    assert "   1.75 hours\n" in printed
    assert "   1.25 hours   29 % less\n" in printed
    assert json.loads(study_json(source))["hours"] == pytest.approx(1.25)


def test_the_same_as_json():
    found = json.loads(study_json("paper-continued"))
    assert found["steps"] == {"alone": 408_000, "shared": 136_000}
    assert found["tokens"] == 136_000 * 1152 * 2048
    assert found["flops"] == pytest.approx(found["tokens"] * 3.9e9, rel=0.1)
    models = {model["name"]: model for model in found["models"]}
    assert models["610m-clm-dec42k-mlm40-64k"] == {
        "name": "610m-clm-dec42k-mlm40-64k",
        "labels": {
            "size": "610m",
            "objective": "clm+mlm",
            "clm_share": 0.65625,
            "budget_steps": 64_000,
            "seed": 0,
            "mask_ratio": 0.4,
        },
        "total_steps": 64_000,
        "own_steps": 22_000,
        "from": "610m-clm-42k",
        "step": 42_000,
        "tokens": 64_000 * 1152 * 2048,
        "segments": [
            {"objective": "mlm", "start": 42_000, "stop": 62_000, "decays": False},
            {"objective": "mlm", "start": 62_000, "stop": 64_000, "decays": True},
        ],
        "kept": [52_000, 64_000],
    }
    # Eight ends, and two checkpoints in each of the two trunks that others begin from.
    assert found["checkpoints"] == 10
    assert found["disk_bytes"] == pytest.approx(10 * 9.07e9, rel=0.01)
    assert "gpu_hours" not in found


def test_nothing_is_loaded_that_takes_seconds():
    program = "import sys; from toolkit.experiments.study.program import show_plan; show_plan('paper')"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_a_model_alone_is_a_run_file_without_a_fork(capsys, tmp_path):
    show_model("paper-from-scratch", "610m-clm-3k-mlm40-12k")
    (tmp_path / "alone.toml").write_text(capsys.readouterr().out)
    run = declare_run(str(tmp_path / "alone.toml"))
    assert run.settings.fork is None
    assert [(phase.objective, phase.stop) for phase in run.plan.schedule.phases] == [("clm", 3000), ("mlm", 12_000)]
    assert run.settings.run.dir == "studies/paper-from-scratch/runs/610m-clm-3k-mlm40-12k"


def test_why_two_models_share_no_more(capsys):
    show_why("paper-from-scratch", "610m-clm-12k", "610m-clm-22k")
    show_why("paper-continued", "610m-clm-42k", "610m-clm-dec42k-mlm40-44k")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("610m-clm-12k and 610m-clm-22k share 10,000 steps: from there on, lr: ")
    assert second.endswith("share 42,000 steps: one is the beginning of the other")
    show_why("paper-from-scratch", "610m-clm-3k-mlm40-12k", "610m-clm-6k-mlm40-12k")
    end = "share 3,000 steps: from there on, objective: mlm there, clm here"
    assert capsys.readouterr().out.splitlines()[0].endswith(end)


def test_some_models_come_with_those_that_they_begin_from():
    _, tree = open_study("paper-continued", only=["610m-clm-dec42k-mlm40-44k"])
    assert set(tree.leaves) == {"610m-clm-42k", "610m-clm-dec42k-mlm40-44k"}
    with pytest.raises(SettingsError, match=r"no model is called 'clm'\. Models: 610m-mlm40-12k, "):
        open_study("paper-from-scratch", only=["clm"])


def test_a_model_that_is_trained_first_keeps_what_the_others_begin_from():
    _, whole = open_study("paper-from-scratch")
    _, tree = open_study("paper-from-scratch", only=["610m-clm-32k-mlm40-42k"])
    assert list(tree.leaves) == ["610m-clm-32k-mlm40-42k"]
    assert tree.leaves["610m-clm-32k-mlm40-42k"].cuts == whole.leaves["610m-clm-32k-mlm40-42k"].cuts != ()


def test_json_is_all_that_a_study_prints_on_standard_output(monkeypatch, capsys):
    def run_study(source, *, only, executor, report):
        print("4 pieces to train")
        return 1

    monkeypatch.setattr("toolkit.experiments.study.program.run_study", run_study)
    with pytest.raises(typer.Exit) as ended:
        command("paper-continued", as_json=True)
    printed = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert json.loads(printed.out)["steps"]["shared"] == 136_000
    assert printed.err == "4 pieces to train\n"


def test_the_report_is_that_of_a_finished_study(tmp_path, monkeypatch):
    class Plan(StudyPlan):
        """One with so many pieces left."""

        def __init__(self, study, tree):
            super().__init__(study, tree)
            self.pieces = self.pieces[: left.pop(0)]

    # Before and after training: one that is stopped, one that is stopped while its last piece saves, and a whole one.
    left, reported = [1, 1, 1, 0, 0], []
    monkeypatch.setattr("toolkit.experiments.study.program.StudyPlan", Plan)
    # It was stopped, or Slurm trains.
    monkeypatch.setattr("toolkit.experiments.study.program._train", lambda plan, folder, executor: True)
    write_run(tmp_path, phase_steps=4)
    source = write_study(tmp_path, ["clm 8", "mlm 8"])
    assert run_study(source, report=reported.append) == 0
    assert reported == []
    assert run_study(source, report=reported.append) == 0
    assert reported == []
    assert run_study(source, report=reported.append) == 0
    assert reported == [tmp_path / "study"]


def test_what_is_on_disk_of_a_study_is_the_whole_of_it_where_some_models_are_trained(tmp_path, monkeypatch):
    monkeypatch.setattr("toolkit.experiments.study.program._train", lambda plan, folder, executor: True)
    write_run(tmp_path, phase_steps=4)
    run_study(write_study(tmp_path, ["clm 8", "mlm 8"]), only=["run-mlm40-8"])
    assert [path.name for path in (tmp_path / "study" / "runs").iterdir()] == ["run-mlm40-8"]
    assert [model.name for model in read_study(tmp_path / "study")] == ["run-clm-8", "run-mlm40-8"]


def test_a_run_folder_that_cannot_be_written_is_named(tmp_path):
    write_run(tmp_path, phase_steps=4)
    (tmp_path / "study" / "runs").mkdir(parents=True)
    (tmp_path / "study" / "runs" / "run-clm-8").touch()
    with pytest.raises(SettingsError, match=r"could not write .*run-clm-8/run\.toml: File exists\. Make its folder"):
        run_study(write_study(tmp_path, ["clm 8"]))


@pytest.mark.parametrize(
    ("keep", "said"), [("", "2 models, 1 task"), ("keep = [5]", "4 models (the ends, and checkpoints of keep), 1 task")]
)
def test_the_models_of_the_grid_are_explained_where_they_are_more_than_those_of_the_study(tmp_path, capsys, keep, said):
    write_run(tmp_path, phase_steps=4)
    path = Path(write_study(tmp_path, ["clm 8", "mlm 8"], study=keep))
    task = '[[task]]\nname = "S"\nkind = "sc"\n' + "".join(f'{name} = "{name}.tsv"\n' for name in SPLITS)
    path.write_text(path.read_text() + task)
    show_plan(str(path))
    assert f"grid: {said}: " in " ".join(capsys.readouterr().out.split())


def test_a_file_that_a_task_lacks_is_told_before_training(tmp_path):
    write_run(tmp_path, phase_steps=4)
    source = write_study(tmp_path, ["clm 8"])
    with open(source, "a") as file:
        file.write('[[task]]\nname = "S"\nkind = "sc"\ntext_columns = ["text"]\n')
        file.writelines(f'{split} = "{tmp_path}/{split}.tsv"\n' for split in SPLITS)
    with pytest.raises(SettingsError, match=r"\[\[task\]\] S: train = '.*train\.tsv' does not exist"):
        run_study(source)
    assert not (tmp_path / "study").exists()


def test_a_step_that_no_model_keeps_is_named_by_its_key(tmp_path):
    write_run(tmp_path, phase_steps=4)
    message = "names step 7, which none of its models has before its learning rate decays; the longest has"
    with pytest.raises(SettingsError, match=rf"^study\.keep {message} 8 steps"):
        open_study(write_study(tmp_path, ["clm 8", "mlm 6"], study="keep = [5, 7]"))
    source = write_study(tmp_path, ["clm 8", "mlm 6"])
    with open(source, "a") as file:
        file.write('[[models]]\naxes.schedule = ["mlm 4"]\n[[models]]\nkeep = [2, 7]\naxes.schedule = ["clm 5"]\n')
    with pytest.raises(SettingsError, match=rf"^keep of block 3 {message} 5 steps"):
        open_study(source)


def test_a_block_keeps_steps_of_its_own_models(tmp_path):
    """Where they share a step with another one, the run that makes the step keeps it; `clm 8` makes the first four."""
    write_run(tmp_path, phase_steps=4)
    path = Path(write_study(tmp_path, ["clm 8"], study="keep = [6]"))
    blocks = '[[models]]\nkeep = [2, 5]\naxes.schedule = ["clm 4 + mlm 3"]\n[[models]]\naxes.schedule = ["mlm 8"]\n'
    path.write_text(path.read_text() + blocks)
    study, tree = open_study(str(path))
    short, clm, mlm = "run-clm-4-mlm40-7", "run-clm-8", "run-mlm40-8"
    assert {name: (leaf.fork, leaf.kept) for name, leaf in tree.leaves.items()} == {
        clm: (0, (2, 4, 6, 8)),
        mlm: (0, (6, 8)),
        short: (4, (5, 7)),
    }
    assert StudyPlan(study, tree).run_file(clm).checkpoint.keep_at == (2, 4, 6, 8)
    path.write_text(path.read_text().replace("keep = [6]\n", ""))
    study, tree = open_study(str(path))
    assert {name: leaf.kept for name, leaf in tree.leaves.items()} == {clm: (2, 4, 8), mlm: (8,), short: (5, 7)}
    assert {"training_step", "training_flops"} < {*axis_labels(study)}


def test_blocks_keep_a_step_that_they_share(tmp_path):
    write_run(tmp_path, phase_steps=4)
    path = Path(write_study(tmp_path, ["clm 4 + mlm 2"]))
    more = '[[models]]\nkeep = [2]\naxes.schedule = ["clm 4 + mlm 4"]\n'
    path.write_text(path.read_text().replace("[[models]]\n", "[[models]]\nkeep = [2]\n") + more)
    _, tree = open_study(str(path))
    kept = {name: leaf.keep for name, leaf in tree.leaves.items() if leaf.keep}
    assert kept == {"run-clm-4-mlm40-8": {2: ("keep of block 1", "keep of block 2")}}


def test_a_block_with_from_keeps_steps_of_its_source_under_the_name_of_the_source(tmp_path):
    write_run(tmp_path, phase_steps=4)
    path = Path(write_study(tmp_path, ["clm 4"]))
    path.write_text(path.read_text() + '[[models]]\nfrom = "run-clm-4"\nkeep = [2, 6]\naxes.schedule = ["mlm 4"]\n')
    _, tree = open_study(str(path))
    assert [(leaf.fork, tuple(leaf.keep)) for leaf in tree.leaves.values()] == [(0, (2,)), (4, (6,))]


def test_the_papers_evaluation_is_counted(capsys):
    """50 models and 12 tasks at 30 rates and seeds; two of the tasks are scored by what a third trains."""
    show_plan("paper")
    assert "12 tasks: 18,000 cells of 15,000 trainings" in capsys.readouterr().out
    found = json.loads(study_json("paper"))
    assert found["grid"] == {"models": 50, "tasks": 12, "cells": 18_000, "trainings": 15_000}
    assert (len(found["models"]), found["steps"]["shared"]) == (38, 812_000)
    steps = {1000, 2000, 5000, 10_000, 20_000, 40_000}
    grid = grid_of(*open_study("paper"))
    on_the_way = {entry.name: set(entry.steps) for entry in grid.model if entry.steps}
    assert on_the_way == {"610m-clm-42k": steps, "610m-mlm40-42k": steps}
    assert "grid" not in json.loads(study_json("paper-base"))
    sweep = json.loads(study_json("paper-learning-rate"))
    assert (len(sweep["models"]), sweep["steps"]["shared"]) == (10, 42_000)
    # The example is for models that others have trained, and a study makes its own.
    example = load_grid(ROOT / "docs/examples/paper-finetuning/grid.toml")
    assert example.task == grid.task
    assert example.grid.model_copy(update={"dir": grid.grid.dir}) == grid.grid


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tidy": True, "only": ["clm"]}, "--tidy does not go with --only"),
        ({"show": "clm", "as_json": True}, "--show does not go with --json"),
        ({"why": ("a", "b"), "dry_run": True}, "--why does not go with --dry-run"),
        ({"device": "h200"}, "--device is for an estimate"),
        ({"dry_run": True, "executor": "k8s"}, "unknown executor 'k8s'"),
    ],
)
def test_an_option_that_would_not_be_read_is_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        command("laptop", **options)


def test_an_unknown_executor_or_study_is_named():
    with pytest.raises(SettingsError, match=r"unknown executor 'k8s'\. Choose one of local, ray, slurm\."):
        command("laptop", executor="k8s")
    with pytest.raises(SettingsError, match=r"no preset has that name\. Did you mean 'laptop'\?"):
        show_plan("labtop")
