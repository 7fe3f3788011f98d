"""A grid's jobs of Slurm, which a stand-in takes."""

import shlex

from tests.support.grids import write_grid
from tests.support.slurm import Slurm
from toolkit.experiments.grid.declaration import load_grid
from toolkit.experiments.grid.program import run_grid
from toolkit.work.start import ExecutorKind


def test_as_many_jobs_run_the_grid_as_it_has_trainings_left(tmp_path, monkeypatch, capsys):
    slurm = Slurm(tmp_path, monkeypatch)
    path = write_grid(tmp_path, kinds=("sc",), rates=(1e-3,), seeds=(0, 1, 2))
    path.write_text(path.read_text() + "[slurm]\noptions = ['--partition=cpu']\n")
    for num_workers, names in ((2, ["out-1", "out-2"]), (1, ["out-1", "out-2"]), (5, ["out-1", "out-2", "out-3"])):
        assert run_grid(load_grid(path), num_workers=num_workers, executor=ExecutorKind.SLURM) == 0
        assert [name for name, _ in slurm.jobs.values()] == names
    assert "out-1: job 1, pending" in capsys.readouterr().out
    assert "--partition=cpu" in slurm.words(1)
    assert shlex.split(slurm.words(1)[-1])[1:] == [
        "-m",
        "toolkit.cli",
        "grid",
        "--",
        str(tmp_path / "out" / "grid.toml"),
    ]
    assert load_grid(tmp_path / "out" / "grid.toml") == load_grid(path)

    slurm.end_all()
    assert run_grid(load_grid(tmp_path / "out" / "grid.toml"), num_workers=1) == 0
    capsys.readouterr()
    assert run_grid(load_grid(path), executor=ExecutorKind.SLURM) == 0
    assert len(slurm.jobs) == 3
    assert "eurobert sc: test accuracy" in capsys.readouterr().out
