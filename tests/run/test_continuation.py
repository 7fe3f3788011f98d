"""What a run goes on from: found once, hashed, and opened by each rank as it was written."""

import shutil

import pytest

from tests.support.runs import RunCase, write_run
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.run.continuation import find_continuation, read_continuation
from toolkit.run.load import declare_run
from toolkit.run.resolve import resolve_run


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The run file of a run with the checkpoints of steps 1 to 3."""
    run_file = write_run(tmp_path_factory.mktemp("begun"))
    RunCase(str(run_file), overrides=("checkpoint.every=1", "checkpoint.keep=9"), until=3)()
    return run_file


def _written(run_file, *overrides):
    run = resolve_run(declare_run(str(run_file), overrides), ds_config="zero0", num_ranks=1)
    with run.folder.locked():
        run.write()
    return run


def test_ranks_open_the_newest_intact_checkpoint_and_look_for_no_other(begun, tmp_path, capsys):
    shutil.copytree(begun.parent / "run", tmp_path / "run")
    place = f"run.dir={tmp_path}/run"
    folder = find_continuation(declare_run(str(begun), [place])).place.removesuffix("3")
    weights = next((tmp_path / "run/checkpoints/step-00000003").glob("weights-*"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    run = _written(begun, place)
    assert (run.continuation.step, folder) == (3, f"{tmp_path}/run/checkpoints/step-0000000")
    assert "skipping step-00000003: " in capsys.readouterr().out
    shutil.copytree(f"{folder}2", f"{folder}4")
    found = read_continuation(run.folder)
    assert (found.place, found.step, found.is_own) == (f"{folder}2", 2, True)
    assert found.open().path.name == "step-00000002"


@pytest.mark.parametrize(
    ("overrides", "key", "takes", "step"),
    [
        ((), "", "everything", 0),
        (('init.from="{run}"',), "init.from", "weights", 0),
        (('init.from="{run}"', 'init.optimizer="keep"'), "init.from", "weights and moments", 0),
        (('fork={{from="{run}/checkpoints/step-00000002", step=2}}',), "fork.from", "everything", 2),
    ],
)
def test_what_a_new_run_takes(begun, tmp_path, overrides, key, takes, step):
    given = [text.format(run=begun.parent / "run") for text in overrides]
    run = _written(begun, f"run.dir={tmp_path}/new", *given)
    found = read_continuation(run.folder)
    assert found == run.continuation
    assert (found.key, found.takes, found.step, found.is_own) == (key, takes, step, False)


def test_first_weights_that_are_damaged_start_no_rank(begun, tmp_path):
    shutil.copytree(begun.parent / "run", tmp_path / "first")
    weights = next((tmp_path / "first/checkpoints/step-00000003").glob("weights-*"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    with pytest.raises(CheckpointError, match=r"weights-.* is damaged"):
        _written(begun, f"run.dir={tmp_path}/new", f"init.from={tmp_path}/first/checkpoints/step-00000003")
    assert not (tmp_path / "new/run.toml").exists()


def test_first_weights_are_the_same_wherever_they_lie(begun, tmp_path):
    """To a run that resumes and to a fork of it; others at another place are not."""
    steps = begun.parent / "run" / "checkpoints"
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(steps / "step-00000001", first)
    shutil.copytree(steps / "step-00000002", second)
    place = (f"run.dir={tmp_path}/own", "checkpoint.every=1")
    RunCase(str(begun), overrides=(*place, f"init.from={first}"), until=2)()
    first.rename(tmp_path / "moved")
    fork = (f"run.dir={tmp_path}/fork", f'fork={{from="{tmp_path}/own/checkpoints/step-00000002", step=2}}')
    for given in (place, fork):
        for source in (first, tmp_path / "moved"):
            assert _written(begun, *given, f"init.from={source}").continuation.step == 2
        with pytest.raises(SettingsError, match=r"init\.from"):
            _written(begun, *given, f"init.from={second}")
