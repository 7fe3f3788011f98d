"""A study's jobs of Slurm, which a stand-in takes: none runs."""

import pytest

from tests.experiments.study.test_plan import CLM, MLM, write_study
from tests.support.grids import write_data
from tests.support.runs import write_run
from tests.support.slurm import Slurm
from toolkit.core.errors import SettingsError
from toolkit.experiments.grid.declaration import load_grid
from toolkit.experiments.study.program import run_study

THREE = "run-clm-3-mlm40-8"


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
        assert run_study(study, executor="slurm") == 0
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
    assert run_study(study, executor="slurm") == 0
    assert list(slurm.jobs.values())[5:] == [
        (f"{CLM}@3", ""), (f"{CLM}@8", "6"), (f"{THREE}@8", "6"), ("grid-1", "7:8:4"),
    ]  # fmt: skip


def test_no_model_is_trained_beside_its_job(tmp_path, monkeypatch, study):
    slurm = Slurm(tmp_path, monkeypatch)
    run_study(study, executor="slurm")
    for number in (1, 2, 3):
        slurm.end(number)
    with pytest.raises(SettingsError, match=rf"Slurm has 1 job of the study in .*: {MLM}@8 \(4\)\. Wait for"):
        run_study(study)
