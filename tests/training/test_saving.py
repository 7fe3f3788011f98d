"""When a run saves: at multiples of `every` and of `keep_every`, at `keep_at`, and at its last step."""

from pathlib import Path

import pytest

from tests.support.runs import RunCase, write_run
from toolkit.checkpoint.folders import step_folders
from toolkit.testing.distributed import run_distributed


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Steps whose checkpoints are left after a run of 7 steps, by its checkpoint settings."""
    folder = tmp_path_factory.mktemp("saving")
    run_file = str(write_run(folder))
    short = ("schedule.0.steps=4", "schedule.1.steps=3", "lr.warmup_steps=1", "lr.decay_steps=1", "eval.rows=1")
    asked = {"both": ("every=2", "keep=1", "keep_every=3"), "trunk": ("keep_every=3",), "neither": ()}
    asked["named"] = ("keep_at=[2, 5]", "keep=1")
    cases = [
        RunCase(str(run_file), "zero0", (f"run.dir={folder / name}", *short, *(f"checkpoint.{one}" for one in keys)))
        for name, keys in asked.items()
    ]
    run_distributed(cases, world_size=1)
    return {name: [step for step, _ in reversed(step_folders(Path(folder / name / "checkpoints")))] for name in asked}


def test_keep_every_that_is_no_multiple_of_every_is_saved_and_kept(left):
    assert left["both"] == [3, 6, 7]


def test_keep_every_alone_saves_too(left):
    assert left["trunk"] == [3, 6, 7]


def test_steps_that_are_named_are_saved_and_kept(left):
    assert left["named"] == [2, 5, 7]


def test_without_either_the_last_step_alone_is_saved(left):
    assert left["neither"] == [7]
