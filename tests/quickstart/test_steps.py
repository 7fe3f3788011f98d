"""How many steps a quickstart trains, by the seconds of one; and what a measurement is."""

import pytest

from toolkit.quickstart import steps as quickstart_steps
from toolkit.quickstart.steps import StepChoice, choose_steps, measure_choice
from toolkit.run import load_run


@pytest.mark.parametrize(
    ("seconds", "steps"), [(0.05, 900), (0.23, 900), (0.25, 750), (0.27, 600), (0.40, 600), (2.0, 600)]
)
def test_a_slower_cpu_trains_fewer_steps(seconds, steps):
    choice = choose_steps(900, seconds)
    assert choice.steps == steps
    assert f"{seconds:.2f} s" in choice.reason
    assert f"{steps} " in choice.reason


def test_what_takes_longer_all_the_same_says_how_long():
    assert "are trained, fewer would teach too little: about 19 minutes" in choose_steps(900, 1.0).reason


def test_a_shorter_run_has_everything_earlier_and_is_a_whole_run():
    shipped = load_run("quickstart")
    assert choose_steps(900, 0.1).overrides(shipped) == []
    short = load_run("quickstart", choose_steps(900, 0.4).overrides(shipped))
    assert short.train.steps == 600
    assert (short.lr.warmup_steps, short.lr.decay_steps, short.checkpoint.every, short.eval.every) == (40, 150, 300, 60)
    assert short.lr.peak > shipped.lr.peak
    assert [phase.fraction for phase in short.schedule] == [0.6, 0.4]
    assert short.train.global_batch_rows == shipped.train.global_batch_rows


def test_a_step_is_measured_in_cpu_seconds_per_core(monkeypatch):
    """A small model, on two ranks: a busy machine changes the clock, and not this."""
    monkeypatch.setattr(quickstart_steps, "choose_precision", lambda stage, *, ranks_per_machine: ("fp32", ""))
    monkeypatch.setattr(quickstart_steps.os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cpu = iter(range(0, 1000, 4))
    monkeypatch.setattr(quickstart_steps.time, "process_time", lambda: float(next(cpu)))
    settings = load_run("quickstart", ["model.vocab_size=64", "data.sequence_length=16", "model.num_hidden_layers=1"])
    assert measure_choice(settings, ranks=2).seconds == 4.0 / 2


def test_a_gpu_is_not_measured(monkeypatch):
    monkeypatch.setattr(quickstart_steps.gpus, "has_gpu", lambda: True)
    choice = measure_choice(load_run("quickstart"), ranks=2)
    assert (choice, choice.reason) == (StepChoice(900, 900), "")
