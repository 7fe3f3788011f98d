"""Spikes of the loss: which steps are, and what becomes of them."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from tests.resume.test_resume import compare
from tests.support.layouts import Layout
from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.checkpoint.read import open_checkpoint
from toolkit.core.errors import LossSpikeError, SettingsError
from toolkit.objectives.mixture import alone
from toolkit.objectives.schedule import Phase, PhaseRows
from toolkit.run import RunFolder, load_run
from toolkit.testing.distributed import run_distributed
from toolkit.training import run_state, spikes
from toolkit.training.run_state import RunState, StepCounts
from toolkit.training.spikes import WINDOW, SpikePolicy

_DEVIATIONS = 0.5
# Runs here have a shorter window, and so shorter phases.
_SHORT, _PHASE = 6, 10


def test_the_threshold_against_numbers_worked_out_by_hand():
    """1 .. 100: the median is 50.5, half of the deviations from it are 25 and less, half 25.5 - 0.5 = 25 and more."""
    losses = [float(number) for number in np.random.default_rng(0).permutation(np.arange(1, WINDOW + 1))]
    assert SpikePolicy("skip", 6).threshold(losses) == pytest.approx(50.5 + 6 * 1.4826 * 25)
    assert SpikePolicy("skip", 0.5).threshold(losses) == pytest.approx(50.5 + 0.5 * 1.4826 * 25)
    assert SpikePolicy("skip", 6).threshold(losses[1:]) == math.inf


def test_what_is_told_is_applied():
    applied = {action: SpikePolicy(action, 6).largest_applied(2.5) for action in ("tell", "skip", "stop")}
    assert applied == {"tell": math.inf, "skip": 2.5, "stop": 2.5}


def test_the_window_holds_the_last_steps_of_its_phase_that_had_targets():
    phases, hashes = (
        (Phase(0, alone("clm"), 0, 150, PhaseRows(1)), Phase(1, alone("mlm"), 150, 300, PhaseRows(1))),
        np.zeros((1, 8), dtype=np.uint8),
    )
    state = RunState()
    for step in range(150):
        counts = StepCounts((int(step != 140),), (1.0,), tokens=1)
        state = state.after_step(phases[0], counts, hashes, means={} if step == 140 else {"clm": float(step)})
    assert state.recent_losses == {"clm": (*map(float, range(49, 140)), *map(float, range(141, 150)))}
    assert state.losses_in(phases[0]) == state.recent_losses
    assert state.losses_in(phases[1]) == {}
    after = state.after_step(phases[1], StepCounts((1,), (1.0,)), hashes, means={"mlm": 9.0})
    assert after.recent_losses == {"mlm": (9.0,)}


def _expected(lines):
    """Steps that are spikes by the definition, from the losses of metrics.jsonl alone."""
    found = []
    for phase in (0, 1):
        losses = {line["step"]: line["loss"] for line in lines if line.get("phase") == phase and "loss" in line}
        for step, loss in losses.items():
            before = np.array([losses[one] for one in range(step - _SHORT, step) if one in losses])
            if before.size == _SHORT:
                robust = 1.4826 * np.median(np.abs(before - np.median(before)))
                found += [step] * bool(loss > np.median(before) + _DEVIATIONS * robust)
    return found


def _marked(lines, mark):
    return [line["step"] for line in lines if line.get("spike") == mark]


def _settings(folder, *more):
    phases = (f"schedule.{number}.steps={_PHASE}" for number in (0, 1))
    short = ("lr.warmup_steps=3", "lr.decay_steps=3", "lr.peak=1e-5", "eval.rows=1", "eval.every=1000")
    return (f"run.dir={folder}", *phases, *short, f"train.spike_deviations={_DEVIATIONS}", *more)


def _train(run_file, layout, settings):
    with pytest.MonkeyPatch.context() as patch:
        for module in (spikes, run_state):
            patch.setattr(module, "WINDOW", _SHORT)
        # Layouts have to read the rows in the same order, not in the same micro-batches.
        overrides = (*settings, *layout.overrides, f"train.micro_batch_rows={8 // layout.dp}")
        return RunCase(run_file, layout.ds_config, overrides)()[0]


@dataclass(frozen=True)
class CutInAWindow:
    """A run, and again from a step within the window of a phase, as if killed there."""

    run_file: str
    folder: str
    layout: Layout
    action: str
    step: int

    def __call__(self) -> list[str]:
        from toolkit.engine.ranks import join_ranks

        ranks, whole, again = join_ranks(), Path(self.folder) / "whole", Path(self.folder) / "again"
        self._run(whole)
        if ranks.rank == 0:
            shutil.copytree(whole, again)
            shutil.rmtree(RunFolder(again).checkpoint(2 * _PHASE))
        dist.barrier()
        self._run(again)
        dist.barrier()
        return compare(whole, again)

    def _run(self, folder: Path) -> None:
        own = (f"train.on_spike={self.action}", f"checkpoint.keep_every={self.step}")
        _train(self.run_file, self.layout, _settings(folder, *own))


_LAYOUTS = {1: [Layout("zero0", 1)], 2: [Layout("zero2", 2), Layout("pipeline", 2, pp=2)]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Differences of a resumed run and metrics of the whole one, by layout and action."""
    folder = tmp_path_factory.mktemp("spikes")
    run_file = str(write_run(folder))
    found = {}
    for size, same_size in _LAYOUTS.items():
        kinds = [
            (layout, action)
            for layout in same_size
            for action in ("tell", "skip")
            if layout.pp == 1 or action == "tell"
        ]
        cases = []
        for layout, action in kinds:
            place = folder / f"{layout} {action}"
            place.mkdir()
            # The window of the second phase is not yet full then, and its spikes are still to come.
            cases.append(CutInAWindow(run_file, str(place), layout, action, step=_PHASE + 4))
        for case, results in zip(cases, run_distributed(cases, world_size=size), strict=True):
            whole = Path(case.folder) / "whole"
            found[str(case.layout), case.action] = (results[0], read_metrics(whole), open_checkpoint(whole))
    return found


def test_a_resumed_run_decides_the_same(runs):
    assert {key: differences for key, (differences, _, _) in runs.items()} == {key: [] for key in runs}


def test_spikes_are_those_of_the_definition_and_none_is_told_at_a_switch(runs):
    for (layout, action), (_, lines, _) in runs.items():
        expected = _expected(lines)
        mark = {"tell": "told", "skip": "skipped"}[action]
        assert _marked(lines, mark) == expected, (layout, action)
        assert {step <= _PHASE for step in expected} == {True, False}, (layout, action)


def test_a_skipped_step_counts_for_all_but_the_optimizer(runs):
    _, told, _ = runs["zero0", "tell"]
    _, skipped, last = runs["zero0", "skip"]
    first, *others = _marked(skipped, "skipped")
    assert others
    by_step = [{line["step"]: line for line in lines} for lines in (told, skipped)]
    # The rows are the same, and so is all up to the first one; after it, the weights differ.
    assert [line["data_digest"] for line in told] == [line["data_digest"] for line in skipped]
    assert by_step[0][first]["loss"] == by_step[1][first]["loss"]
    assert by_step[0][first]["grad_norm"] == by_step[1][first]["grad_norm"]
    assert by_step[0][first + 1]["loss"] != by_step[1][first + 1]["loss"]
    assert last.manifest.step == 2 * _PHASE
    assert last.manifest.optimizer_step == 2 * _PHASE - len(_marked(skipped, "skipped"))


def test_layouts_skip_the_same_steps(runs):
    one, two = (_marked(runs[layout, "skip"][1], "skipped") for layout in ("zero0", "zero2 dp2"))
    assert one == two


@dataclass(frozen=True)
class Stopped:
    """A run that stops at a spike, started again with another action; gives its error and how it ended then."""

    run_file: str
    folder: str
    layout: Layout

    def __call__(self) -> tuple[str, str]:
        settings = _settings(self.folder, "checkpoint.every=5")
        try:
            _train(self.run_file, self.layout, (*settings, "train.on_spike=stop"))
        except LossSpikeError as error:
            return str(error), _train(self.run_file, self.layout, settings)
        return "no error", ""


def test_stop_ends_the_run_before_the_update_is_saved_and_tell_takes_it_past(tmp_path, runs):
    run_file = str(write_run(tmp_path))
    cases = [Stopped(run_file, str(tmp_path / str(layout)), layout) for layout in _LAYOUTS[2]]
    for case, (first, second) in zip(cases, run_distributed(cases, world_size=2), strict=True):
        told = runs[str(case.layout), "tell"][1]
        assert first == second
        assert first[0].startswith(f"step {_marked(told, 'told')[0]}: the loss "), first
        # Each copy of the model names its own, on the rank that knows the loss.
        speakers = [rank for rank in (0, 1) if f"rank {rank}, epoch " in first[0]]
        assert speakers == ([1] if case.layout.pp > 1 else [0, 1])
        assert first[1] == f"finished at step {2 * _PHASE}"
        # As if it had never stopped.
        found = read_metrics(Path(case.folder))
        assert [(line["step"], line.get("loss")) for line in found] == [
            (line["step"], line.get("loss")) for line in told
        ]


def test_an_objective_that_has_few_rows_is_no_spike_in_the_steps_that_have_one(tmp_path):
    """One row of every fourth step, with a weight that makes the loss of that step half as large again."""
    mix = '{objective="mlm", share=0.96875}, {objective="clm", share=0.03125, weight=4.0}'
    settings = [
        f"run.dir={tmp_path}/run",
        "train.on_spike=skip",
        f"schedule=[{{mix=[{mix}], steps=20}}]",
        "eval.rows=1",
    ]
    _train(str(write_run(tmp_path)), Layout("zero0", 1), [*settings, f"run.dir={tmp_path}/run", "lr.peak=1e-6"])
    lines = [line for line in read_metrics(tmp_path / "run") if "loss" in line]
    rare = [line["step"] for line in lines if line["targets"]["clm"]]
    assert len(rare) == 5
    assert min(line["loss"] for line in lines if line["step"] in rare) > 1.3 * lines[0]["losses"]["mlm"]
    assert [line["step"] for line in lines if "spike" in line] == []
    last = open_checkpoint(tmp_path / "run").manifest
    assert last.optimizer_step == 20
    assert [len(last.recent_losses[name]) for name in ("mlm", "clm")] == [_SHORT, 5]


def test_skip_under_a_pipeline_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r'train\.on_spike="skip" cannot run with parallel\.pp=2'):
        load_run(str(write_run(tmp_path)), ["train.on_spike=skip", "parallel.pp=2"])
