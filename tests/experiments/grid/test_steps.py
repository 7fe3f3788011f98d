"""Checkpoints of a run as models of a grid: `steps` of a `[[model]]`; nothing is trained."""

import pytest

from tests.support.checkpoints import write_tiny_run
from tests.support.grids import write_grid
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.experiments.grid.declaration import load_grid
from toolkit.experiments.grid.plan import GridPlan
from toolkit.experiments.grid.program import show_grid
from toolkit.run.folder import RunFolder


@pytest.fixture
def run(tmp_path):
    return RunFolder(write_tiny_run(tmp_path, steps=(2, 4, 6, 9)))


def write_entry(run, steps, *more):
    """A grid file of one task whose first model is a run at these steps."""
    path = write_grid(run.path.parent, kinds=("sc",), rates=(1e-3,), seeds=(0,))
    head, entry, task = path.read_text().partition(
        f"[[model]]\nname = 'eurobert'\npath = '{run.path.parent}/eurobert'\n"
    )
    assert entry
    entry = f"[[model]]\nname = 'clm'\npath = '{run.path}'\nlabels = {{ kind = 'x' }}\nsteps = {steps}\n"
    path.write_text(head + entry + "".join(more) + task)
    return path


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("'all'", [2, 4, 6, 9]),
        ("[9, 2]", [2, 9]),
        ("'4..8'", [4, 6]),
        ("'2..9'", [2, 4, 6, 9]),
        ("'1..9:5'", [6]),
        ("'2..9:4'", [2, 6]),
    ],
)
def test_a_run_is_a_model_for_each_step(run, steps, expected, capsys):
    plan = GridPlan(load_grid(write_entry(run, steps)))
    assert [model.name for model in plan.grid.model] == [f"clm@{step}" for step in expected]
    assert [cell.model for cell in plan.cells] == [f"clm@{step}" for step in expected]
    for step, model in zip(expected, plan.grid.model, strict=True):
        assert model.path == str(run.checkpoint(step))
        assert model.labels == {"kind": "x", "run": "clm", "training_step": step}
        # What a report and later commands read is the grid as it was resolved.
        assert model.steps is None
    said = f"as they are now: steps {', '.join(map(str, expected))}\n"
    assert (said in capsys.readouterr().out) == (steps[0] == "'")


def test_the_models_of_a_run_that_trains_are_those_of_now(run, capsys):
    with run.locked():
        path = write_entry(run, "'all'")
        plan = GridPlan(load_grid(path))
        write_tiny_run(run.path.parent, steps=(12,))
        assert [cell.model for cell in plan.cells] == ["clm@2", "clm@4", "clm@6", "clm@9"]
        assert "steps 2, 4, 6, 9; it is training: the same command adds later ones" in capsys.readouterr().out
    show_grid(load_grid(path))
    assert "clm@12 sc (sc)" in capsys.readouterr().out


def test_a_damaged_checkpoint_is_left_out_of_all_and_named_where_it_is_asked_for(run, capsys):
    weights = next(run.checkpoint(4).glob("weights-*"))
    weights.write_bytes(weights.read_bytes()[:-1])
    plan = GridPlan(load_grid(write_entry(run, "'2..6'")))
    assert [model.name for model in plan.grid.model] == ["clm@2", "clm@6"]
    assert f"[[model]] clm: left out: {weights} is damaged" in capsys.readouterr().out
    for steps in ("[2, 4]", "'4..5'"):
        with pytest.raises(CheckpointError, match="is damaged"):
            GridPlan(load_grid(write_entry(run, steps)))


def test_the_end_of_a_run_stands_beside_its_steps_and_no_model_is_there_twice(run):
    end = f"[[model]]\nname = 'clm'\npath = '{run.path}'\n"
    plan = GridPlan(load_grid(write_entry(run, "[2]", end)))
    assert [(model.name, model.path) for model in plan.grid.model] == [
        ("clm@2", str(run.checkpoint(2))),
        ("clm", str(run.path)),
    ]
    with pytest.raises(SettingsError, match=r"\[\[model\]\] 'clm@2' is there twice"):
        GridPlan(load_grid(write_entry(run, "'all'", end + "steps = [2]\n")))
