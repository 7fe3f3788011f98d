"""When a run saves: at multiples of `every` and of `keep_every`, at `keep_at`, at its best and at its last step."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.checkpoint.folders import step_folders
from toolkit.checkpoint.read import open_checkpoint
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.run.folder import RunFolder
from toolkit.run.load import declare_run, read_resolved
from toolkit.run.metrics import best_step
from toolkit.run.resolve import resolve_run
from toolkit.testing.distributed import run_distributed

_SHORT = ("schedule.0.steps=4", "schedule.1.steps=3", "lr.warmup_steps=1", "lr.decay_steps=1", "eval.rows=1")


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Steps whose checkpoints are left after a run of 7 steps, by its checkpoint settings."""
    folder = tmp_path_factory.mktemp("saving")
    run_file = str(write_run(folder))
    asked = {"both": ("every=2", "keep=1", "keep_every=3"), "trunk": ("keep_every=3",), "neither": ()}
    asked["named"] = ("keep_at=[2, 5]", "keep=1")
    cases = [
        RunCase(str(run_file), "zero0", (f"run.dir={folder / name}", *_SHORT, *(f"checkpoint.{one}" for one in keys)))
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


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("kept"))


def make(run_file, name, *overrides, ds_config="zero0"):
    """A run's folder; its checkpoints, by step."""
    folder = run_file.parent / name
    case = RunCase(str(run_file), ds_config, (f"run.dir={folder}", *_SHORT, *overrides))
    run_distributed([case], world_size=1)
    return folder, {step: open_checkpoint(path) for step, path in step_folders(folder / "checkpoints")}


@pytest.mark.parametrize("ds_config", ["zero0", "zero2", "zero3"])
def test_step_0_is_kept_and_resumed_from(run_file, ds_config):
    name = f"first-{ds_config}"
    folder, saved = make(run_file, name, "checkpoint.keep_at=[0]", "checkpoint.keep=1", ds_config=ds_config)
    assert (list(saved), saved[0].manifest.optimizer_step, saved[0].manifest.tokens) == ([7, 0], 0, 0)
    weight = "model.embed_tokens.weight"
    assert not torch.equal(saved[0].weight(weight), saved[7].weight(weight))
    whole, lines = saved[7].parameter(weight), read_metrics(folder)
    shutil.rmtree(saved[7].path)
    _, again = make(run_file, name, "checkpoint.keep_at=[0]", "checkpoint.keep=1", ds_config=ds_config)
    assert torch.equal(again[7].parameter(weight).exp_avg, whole.exp_avg)
    assert [line["data_digest"] for line in read_metrics(folder)] == [line["data_digest"] for line in lines]


def test_the_best_step_is_saved_and_kept(run_file, capfd):
    """At so high a rate the loss rises; a resumed run finds the best again."""
    for until in (5, None):
        overrides = (f"run.dir={run_file.parent / 'best'}", *_SHORT, "lr.peak=1", "eval.every=1", "checkpoint.keep=1")
        case = RunCase(str(run_file), "zero0", (*overrides, "checkpoint.keep_best=true"), until=until)
        _, lines = case()
    losses = {line["step"]: line["eval_loss"]["mlm"] for line in lines if line["step"]}
    best = min(losses, key=losses.get)
    assert [step for step, _ in step_folders(run_file.parent / "best" / "checkpoints")] == [7, best]
    assert f"lowest validation loss: {losses[best]:.4f} at step {best} (" in capfd.readouterr().out


@pytest.mark.parametrize("other", ["data.validation={corpus}", "eval.rows=1"])
def test_the_best_is_by_losses_on_the_present_validation_corpus(run_file, other):
    """It is another one, or a part of it, from step 5 on; its losses have risen since."""
    folder, best = run_file.parent / "other", ("lr.peak=1", "eval.every=1", "checkpoint.keep_best=true")
    case = RunCase(str(run_file), "zero0", (f"run.dir={folder}", *_SHORT, *best), until=5)
    case()
    replace(case, overrides=(*case.overrides, other.format(corpus=run_file.parent / "corpus")), until=None)()
    losses = {line["step"]: line["eval_loss"]["mlm"] for line in read_metrics(folder)}
    later = {step: loss for step, loss in losses.items() if step > 5}
    assert min(losses[step] for step in range(1, 6)) < min(later.values())
    run = RunFolder(folder)
    assert best_step(run, read_resolved(run.settings_file).settings, run.newest_manifest().corpora).step in later


def test_weights_alone_stay_of_what_is_kept(run_file):
    """They verify; nobody resumes or forks from them, also where a newer one is damaged."""
    light = ("checkpoint.keep_every=3", "checkpoint.keep=1", "checkpoint.keep_weights_only=true")
    folder, saved = make(run_file, "light", *light)
    _, whole = make(run_file, "whole", "checkpoint.keep_every=3")
    assert {step: one.manifest.has_moments for step, one in saved.items()} == {7: True, 6: False, 3: False}
    assert not list(saved[3].path.glob("exp_avg*"))
    assert all(torch.equal(saved[3].weight(name), whole[3].weight(name)) for name in whole[3].names)
    fork = (f"fork={{from='{saved[3].path}', step=3}}", f"run.dir={folder}-fork")
    with pytest.raises(SettingsError, match=r"goes on with the optimizer, but .* a run's weights alone\.\nA new"):
        resolve_run(declare_run(str(run_file), [*_SHORT, *fork]), ds_config="zero0", num_ranks=1)
    next(saved[7].path.glob("weights-*")).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"step 6 in .* has no optimizer state"):
        RunCase(str(run_file), "zero0", (f"run.dir={folder}", *_SHORT, *light))()
