"""A study's jobs of Slurm, which a stand-in takes: none runs."""

from pathlib import Path

import pytest

from tests.experiments.study.test_plan import CLM, MLM, write_study
from tests.support.grids import write_data
from tests.support.runs import write_run
from tests.support.slurm import Slurm
from toolkit.core.errors import SettingsError
from toolkit.experiments.grid.declaration import load_grid
from toolkit.experiments.study.program import run_study
from toolkit.run.load import load_run
from toolkit.work.start import ExecutorKind

THREE = "run-clm-3-mlm40-8"


def submit(source):
    return run_study(source, executor=ExecutorKind.SLURM)


@pytest.fixture
def study(tmp_path):
    """A study with a task."""
    write_run(tmp_path, phase_steps=4)
    source = write_study(tmp_path, ["clm 8", "clm 3 + mlm 5", "mlm 8"])
    with open(source, "a") as file:
        file.write("[machine]\nthreads = 1\n[slurm]\noptions = ['--partition=cpu']\n[grid]\nlearning_rates = [1e-3]\n")
        file.write(f"[[task]]\nname = 'S'\nkind = 'sc'\n{write_data(tmp_path / 'data')['sc']}\n")
    return source


@pytest.mark.costs(10)
def test_the_grid_is_the_last_job_and_nothing_is_submitted_twice(tmp_path, monkeypatch, study):
    slurm = Slurm(tmp_path, monkeypatch)
    for _ in range(2):
        assert submit(study) == 0
        assert slurm.jobs == {
            "1": (f"{CLM}@3", ""),
            "2": (f"{CLM}@8", "1"),
            "3": (f"{THREE}@8", "1"),
            "4": (f"{MLM}@8", ""),
            "5": ("grid-1", "2:3:4"),
        }
    assert "--partition=cpu" in slurm.words(1)
    assert "--partition=cpu" in slurm.words(5)
    declared = load_grid(tmp_path / "study" / "grid" / "grid.toml")
    # A run that has not ended has other checkpoints: no model is fine-tuned from these.
    assert [entry.path for entry in declared.model] == [
        f"{tmp_path}/study/runs/{name}/checkpoints/step-00000008" for name in (CLM, THREE, MLM)
    ]

    # The trunk was cancelled; Slurm has removed what waits for it, but for the grid's job.
    for number in (1, 2, 3):
        slurm.end(number)
    assert submit(study) == 0
    assert list(slurm.jobs.values())[5:] == [
        (f"{CLM}@3", ""), (f"{CLM}@8", "6"), (f"{THREE}@8", "6"), ("grid-1", "4:7:8"),
    ]  # fmt: skip


def test_a_model_added_while_jobs_wait_makes_no_second_job_of_one_run(tmp_path, monkeypatch, capsys):
    """What it begins from is a step of a job that is there, which is told when it runs already; and a model that was
    told to begin with its first step does so, although the new one would be its giver.
    """
    slurm = Slurm(tmp_path, monkeypatch)
    write_run(tmp_path, phase_steps=4)
    assert submit(write_study(tmp_path, ["clm 3 + mlm 5"])) == 0
    for _ in range(2):
        assert submit(write_study(tmp_path, ["clm 3 + mlm 5", "clm 8", "clm 3 + mlm 3"])) == 0
        assert slurm.jobs == {"1": (f"{THREE}@8", ""), "2": (f"{CLM}@8", "1"), "3": ("run-clm-3-mlm40-6@6", "1")}
        assert load_run(f"{tmp_path}/study/runs/{THREE}/run.toml").fork is None
        assert load_run(f"{tmp_path}/study/runs/{CLM}/run.toml").fork.step == 3
    keep_at = load_run(f"{tmp_path}/study/runs/{THREE}/run.toml").checkpoint.keep_at
    assert keep_at == (3, 4, 8)
    assert "begun without the order" not in capsys.readouterr().out
    slurm.begin(1)
    assert submit(write_study(tmp_path, ["clm 3 + mlm 5", "clm 8", "clm 3 + mlm 3"])) == 0
    assert (
        f"{THREE}@8: it has begun without the order to keep step 3, which others now begin from. To let it save, and "
        "go on with that order: scancel --batch --signal=USR1 1" in capsys.readouterr().out
    )


def test_a_model_that_is_the_beginning_of_a_queued_one_waits_for_its_checkpoint(tmp_path, monkeypatch):
    slurm = Slurm(tmp_path, monkeypatch)
    write_run(tmp_path, phase_steps=4)
    for schedules in (["clm 3 + mlm 5"], ["clm 3 + mlm 5", "clm 3"]):
        path = Path(write_study(tmp_path, schedules))
        path.write_text(path.read_text().replace("decay_steps = 2", "decay_steps = 0"))
        assert submit(str(path)) == 0
    assert slurm.jobs == {"1": (f"{THREE}@8", "")}
    assert load_run(f"{tmp_path}/study/runs/{THREE}/run.toml").checkpoint.keep_at == (3, 8)
    assert load_run(f"{tmp_path}/study/runs/run-clm-3/run.toml").fork is None


def test_what_waits_for_a_job_that_failed_is_submitted_again(tmp_path, monkeypatch, study):
    """Slurm removes it soon."""
    slurm = Slurm(tmp_path, monkeypatch)
    submit(study)
    slurm.end(1)
    for number in (2, 3, 5):
        slurm.end(number)
        slurm.add(f"{number}|PENDING|DependencyNeverSatisfied|{slurm.jobs[str(number)][0]}")
    assert submit(study) == 0
    assert list(slurm.jobs.values())[5:] == [
        (f"{CLM}@3", ""), (f"{CLM}@8", "6"), (f"{THREE}@8", "6"), ("grid-1", "4:7:8"),
    ]  # fmt: skip


def test_no_model_is_trained_beside_its_job(tmp_path, monkeypatch, study):
    slurm = Slurm(tmp_path, monkeypatch)
    submit(study)
    for number in (1, 2, 3):
        slurm.end(number)
    with pytest.raises(SettingsError, match=rf"Slurm has 1 job of the study in .*: {MLM}@8 \(4\)\. Wait for"):
        run_study(study)
