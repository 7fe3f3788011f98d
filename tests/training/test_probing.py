"""Probes beside a training: nothing waits for them, no checkpoint is lost to them, and their scores arrive."""

import importlib.util
import sys
import time
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.checkpoints import states_of, write_checkpoint
from tests.support.runs import RunCase, read_metrics, write_run
from toolkit.checkpoint.folders import step_folders
from toolkit.objectives.mixture import alone
from toolkit.objectives.schedule import Phase, PhaseRows
from toolkit.run.load import declare_run
from toolkit.run.metrics import missing_probes
from toolkit.testing.distributed import run_distributed
from toolkit.training import probing
from toolkit.training.hooks import Hook, RetentionHook
from toolkit.training.probing import ProbeHook
from toolkit.training.run_state import RunState, StepCounts, StepInfo, StepMetrics

PROBE = ("probe.task=shape", "probe.kind=sc", "probe.train=train.tsv", "probe.test=test.tsv")
SCORES = 'import sys; print("a word of a library"); print(\'{"score": 0.%02d}\' % int(sys.argv[2]))'
"""The score of step 20 is 0.20."""


def settings_of(folder, *overrides):
    return declare_run(str(write_run(folder)), [*PROBE, "checkpoint.every=4", "checkpoint.keep=1", *overrides])


class Watched(ProbeHook):
    """A hook whose processes run `program`; keeps what it reports and says."""

    def __init__(self, settings, monkeypatch, program):
        self.reported, self.said = {}, []
        command = lambda folder, step: [sys.executable, "-c", program, str(folder), str(step)]  # noqa: E731
        monkeypatch.setattr(probing, "_command", command)
        super().__init__(
            settings, report=self.reported.__setitem__, say=self.said.append, is_stop_requested=lambda: False
        )

    def step(self, step, *, saved=False):
        state = RunState(step)
        metrics = StepMetrics(2.0, 1.0, 1e-3, StepCounts((0,), (0.0,)), 0.1)
        self.after_step(StepInfo(state, Phase(0, alone("clm"), 0, 20, PhaseRows(1)), "causal"), metrics)
        if saved:
            self.on_checkpoint(step)


@pytest.mark.parametrize(
    ("overrides", "probed"),
    [
        ((), [4, 8, 12, 16, 20]),
        (("probe.every=8",), [8, 16, 20]),
        (("checkpoint.keep_every=5",), [4, 5, 8, 10, 12, 15, 16, 20]),
        (("checkpoint.keep_every=5", "probe.every=10"), [10, 20]),
        (("schedule.1.steps=9",), [4, 8, 12, 16, 19]),
    ],
)
def test_which_checkpoints_are_probed(tmp_path, overrides, probed):
    declared = settings_of(tmp_path, *overrides)
    assert [step for step in range(1, probed[-1] + 1) if declared.is_probed(step)] == probed


def test_a_run_without_a_probe_probes_nothing(tmp_path):
    declared = declare_run(str(write_run(tmp_path)), ["checkpoint.every=4"])
    assert not any(declared.is_probed(step) for step in range(21))
    assert missing_probes(declared, up_to=20) == []


def test_no_step_waits_for_a_probe(tmp_path, monkeypatch):
    """The probe of step 4 would take a minute: the steps after it take none of that, and later checkpoints wait."""
    probes = Watched(settings_of(tmp_path), monkeypatch, "import time; time.sleep(60)")
    started = time.monotonic()
    for step in range(1, 20):
        probes.step(step, saved=step % 4 == 0)
    assert time.monotonic() - started < 30
    assert [step for step in range(21) if step in probes] == [4, 8, 12, 16]
    assert len([said for said in probes.said if "probes take longer" in said]) == 1
    process = probes._running.process
    probes.close(None)
    assert process.poll() == -9
    assert probes.reported == {}


def test_one_process_at_a_time_and_the_scores_in_order(tmp_path, monkeypatch):
    probes = Watched(settings_of(tmp_path), monkeypatch, SCORES)
    for step in (4, 8, 12):
        probes.step(step, saved=True)
        assert (probes._running is not None) + len(probes._waiting) + len(probes.reported) == step // 4
    probes.finish()
    assert list(probes.reported.items()) == [(4, {"shape": 0.04}), (8, {"shape": 0.08}), (12, {"shape": 0.12})]
    assert "step 12: probe shape 0.120" in probes.said
    assert not any(step in probes for step in (4, 8, 12))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('train.tsv: no such file.')", "train.tsv: no such file."),
        ("raise ValueError('no such thing')", "ValueError: no such thing"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9 ended it"),
        ("import sys; sys.exit(7)", "exit code 7"),
        ("print('done')", "it printed no number"),
        ("print('{\"score\": NaN}')", "it printed no number"),
        ("", "it printed no number"),
    ],
)
def test_one_that_fails_is_reported_once_and_the_next_is_made(tmp_path, monkeypatch, program, reason):
    probes = Watched(settings_of(tmp_path), monkeypatch, program)
    for step in (4, 8):
        probes.step(step, saved=True)
    probes.finish()
    failures = [said for said in probes.said if "failed: " in said]
    assert len(failures) == 1
    assert failures[0].startswith(f"the probe of step 4 failed: {reason}\n")
    assert probes.said[-1] == "2 probes failed"
    assert probes.reported == {}


def test_a_process_that_cannot_be_started_ends_nothing(tmp_path, monkeypatch):
    probes = Watched(settings_of(tmp_path), monkeypatch, SCORES)
    monkeypatch.setattr(probing, "_command", lambda folder, step: ["/no/such/program"])
    probes.step(4, saved=True)
    assert "could not start a process: No such file or directory" in probes.said[0]


def test_the_end_waits_for_a_limited_time(tmp_path, monkeypatch):
    probes = Watched(settings_of(tmp_path), monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(probing, "_SECONDS_AT_END", 0.3)
    probes.step(16, saved=True)
    probes.step(20, saved=True)
    started = time.monotonic()
    probes.on_end(RunState(20))
    assert time.monotonic() - started < 30
    assert "no longer waiting for the probe of step 16, 20; the same command, run again, makes it" in probes.said
    probes.close(None)


def test_a_run_that_is_stopped_does_not_wait(tmp_path, monkeypatch):
    probes = Watched(settings_of(tmp_path), monkeypatch, "import time; time.sleep(60)")
    probes.step(8, saved=True)
    started = time.monotonic()
    probes.on_end(RunState(9))
    probes.close(None)
    assert time.monotonic() - started < 30


def test_a_checkpoint_that_waits_is_not_deleted(tmp_path, monkeypatch):
    declared = settings_of(tmp_path)
    root = tmp_path / "run" / "checkpoints"
    (tmp_path / "tokenizer").mkdir()
    probes = Watched(declared, monkeypatch, "import time; time.sleep(60)")
    retention = RetentionHook(root, declared.settings.checkpoint, probes, say=print)
    for step in (3, 4, 8, 12):
        write_checkpoint(root, step, states=states_of(step), tokenizer_folder=tmp_path / "tokenizer")
        probes.step(step, saved=True)
        retention.on_checkpoint(step)
    assert [step for step, _ in step_folders(root)] == [12, 8, 4]
    probes.close(None)
    probes._waiting.clear()
    retention.on_end(RunState(13))
    assert [step for step, _ in step_folders(root)] == [12]


def test_the_program_has_the_name_that_training_knows():
    assert importlib.util.find_spec(probing._PROGRAM) is not None


@dataclass
class LastStep(Hook):
    step: int = 0

    def after_step(self, info, metrics):
        self.step = info.step


@dataclass(frozen=True)
class Probed:
    """A run whose probes are `program`, stopped if asked after a step that is evaluated or saved."""

    run_file: str
    overrides: tuple[str, ...] = ()
    program: str = SCORES
    stop_at: int | None = None

    def __call__(self) -> str:
        from toolkit.training import loop

        def stopped(run: loop.Run, state: RunState) -> RunState:
            last = LastStep()
            stops = lambda: last.step == self.stop_at  # noqa: E731
            return loop.train(replace(run, hooks=[last, *run.hooks], is_stop_requested=stops), state)

        with pytest.MonkeyPatch.context() as patch:
            command = lambda folder, step: [sys.executable, "-c", self.program, str(folder), str(step)]  # noqa: E731
            patch.setattr(probing, "_command", command)
            patch.setattr(import_module("toolkit.training.pretrain"), "train", stopped)
            return RunCase(self.run_file, "zero1", self.overrides)()[0]


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probed")
    for name in ("train.tsv", "test.tsv"):
        (folder / name).write_text("text\tlabel\nt4 t5\ta\nt6\tb\n")
    return str(write_run(folder))


def _overrides(run_file, name, *more):
    folder = Path(run_file).parent
    files = (f"probe.train={folder / 'train.tsv'}", f"probe.test={folder / 'test.tsv'}")
    return (
        *("probe.task=shape", "probe.kind=sc", *files, f"run.dir={folder / name}", "eval.rows=1"),
        *("schedule.0.steps=4", "schedule.1.steps=4", "lr.warmup_steps=1", "lr.decay_steps=1"),
        *("checkpoint.every=2", "checkpoint.keep=1", "log.every=4", "log.tensorboard=true", *more),
    )


def _probes(run_file, name):
    lines = read_metrics(Path(run_file).parent / name)
    steps = [line["step"] for line in lines]
    assert sorted(set(steps)) == steps
    return {line["step"]: line["probe"] for line in lines if "probe" in line}


def test_scores_stand_in_the_line_of_their_step_and_as_a_curve(run_file):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    case = Probed(run_file, _overrides(run_file, "whole"))
    assert run_distributed([case], world_size=2) == [["finished at step 8"] * 2]
    expected = {2: 0.02, 4: 0.04, 6: 0.06, 8: 0.08}
    assert _probes(run_file, "whole") == {step: {"shape": score} for step, score in expected.items()}
    events = EventAccumulator(str(Path(run_file).parent / "whole" / "tensorboard")).Reload().Scalars("probe/shape")
    assert {event.step: event.value for event in events} == pytest.approx(expected)
    assert [step for step, _ in step_folders(Path(run_file).parent / "whole" / "checkpoints")] == [8]


def test_a_resumed_run_makes_what_is_missing(run_file):
    """Stopped at step 5, where the probe of step 4 failed and that of step 2 is still to come."""
    fails = "import sys, time\nif sys.argv[2] == '2': time.sleep(60)\nsys.exit(1)"
    more = _overrides(run_file, "stopped", "eval.every=5")
    cases = [Probed(run_file, more, fails, stop_at=5), Probed(run_file, more)]
    assert run_distributed(cases, world_size=1) == [["stopped at step 5"], ["finished at step 8"]]
    assert _probes(run_file, "stopped") == {step: {"shape": step / 100} for step in (2, 4, 6, 8)}


def test_a_finished_run_makes_what_is_missing(run_file):
    """No probe of it worked, and the last does not the second time either; how it ends stays the same."""
    more = _overrides(run_file, "finished", "checkpoint.keep=9")
    fails = "import sys; sys.exit(1)"
    last_fails = "import sys\nif sys.argv[2] == '8': sys.exit(1)\nprint('{\"score\": 0.5}')"
    cases = [Probed(run_file, more, fails), Probed(run_file, more, last_fails), Probed(run_file, more)]
    ends = run_distributed(cases[:1], world_size=1)
    assert _probes(run_file, "finished") == {}
    ends += run_distributed(cases[1:], world_size=1)
    assert [end for (end,) in ends] == ["finished at step 8", *["already finished at step 8"] * 2]
    scores = {2: 0.5, 4: 0.5, 6: 0.5, 8: 0.08}
    assert _probes(run_file, "finished") == {step: {"shape": score} for step, score in scores.items()}
