"""Learning rates at steps small enough to check by hand."""

import pytest
from pydantic import ValidationError

from toolkit.core.errors import SettingsError
from toolkit.engine.lr import LearningRateSettings, learning_rate_at


def test_every_step_of_a_small_run():
    settings = LearningRateSettings(peak=1.0, warmup_steps=4, decay_steps=2)
    rates = [learning_rate_at(step, settings, total_steps=8) for step in range(8)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.5]


def test_no_step_runs_at_zero_and_the_last_has_peak_over_decay():
    settings = LearningRateSettings(peak=5e-4, warmup_steps=2000, decay_steps=2000)
    assert learning_rate_at(0, settings, total_steps=42_000) == pytest.approx(5e-4 / 2000)
    assert learning_rate_at(1999, settings, total_steps=42_000) == 5e-4
    assert learning_rate_at(39_999, settings, total_steps=42_000) == 5e-4
    assert learning_rate_at(40_000, settings, total_steps=42_000) == 5e-4
    assert learning_rate_at(41_999, settings, total_steps=42_000) == pytest.approx(5e-4 / 2000)


@pytest.mark.parametrize(("total", "ramp"), [(42_000, 2000), (1000, 50), (19, 0), (20, 1)])
def test_unset_ramps_are_five_percent_up_to_2000(total, ramp):
    assert LearningRateSettings().ramps(total) == (ramp, ramp)


@pytest.mark.parametrize(("given", "decay"), [({}, 100), ({"decay_steps": 7}, 7)])
def test_a_share_is_of_the_run_and_steps_go_before_it(given, decay):
    assert LearningRateSettings(decay_fraction=0.5, **given).ramps(200) == (10, decay)


def test_ramps_longer_than_the_run_are_refused():
    with pytest.raises(SettingsError, match=r"lr.warmup_steps \(15\) and lr.decay_steps \(10\).*20 steps") as caught:
        LearningRateSettings(warmup_steps=15, decay_steps=10).ramps(20)
    assert "--set lr.warmup_steps=1 --set lr.decay_steps=10" in str(caught.value)


# Two steps of warm-up and four of decay in a run of eight, peak 1: the decay is at 0, 1/4, 1/2 and 3/4.
_DECAYS = [
    ({"decay": "linear"}, [1.0, 0.75, 0.5, 0.25]),
    ({"decay": "linear", "floor": 0.2}, [1.0, 0.8, 0.6, 0.4]),
    ({"decay": "1-sqrt"}, [1.0, 0.5, 0.292893218813, 0.133974596216]),
    ({"decay": "1-sqrt", "floor": 0.1}, [1.0, 0.55, 0.363603896932, 0.220577136594]),
    ({"decay": "cosine"}, [1.0, 0.853553390593, 0.5, 0.146446609407]),
    ({"decay": "cosine", "floor": 0.5}, [1.0, 0.926776695297, 0.75, 0.573223304703]),
    ({"decay": "exponential", "floor": 0.0625}, [1.0, 0.5, 0.25, 0.125]),
]


@pytest.mark.parametrize(("given", "decayed"), _DECAYS, ids=lambda case: str(case))
def test_every_decay_against_a_table(given, decayed):
    settings = LearningRateSettings(peak=1.0, warmup_steps=2, decay_steps=4, **given)
    rates = [learning_rate_at(step, settings, total_steps=8) for step in range(8)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 1.0, *decayed], abs=1e-12)


def test_a_cosine_takes_all_that_is_behind_the_warm_up():
    settings = LearningRateSettings(peak=2.0, warmup_steps=2, kind="cosine")
    rates = [learning_rate_at(step, settings, total_steps=8) for step in range(8)]
    table = [1.0, 2.0, 2.0, 1.866025403784, 1.5, 1.0, 0.5, 0.133974596216]
    assert rates == pytest.approx(table, abs=1e-12)
    settings = LearningRateSettings(peak=2.0, warmup_steps=2, kind="cosine", floor=0.1)
    floored = [learning_rate_at(step, settings, total_steps=8) for step in range(8)]
    table = [1.0, 2.0, 2.0, 1.879422863406, 1.55, 1.1, 0.65, 0.320577136594]
    assert floored == pytest.approx(table, abs=1e-12)
    assert settings.ramps(8) == (2, 6)


def test_constant_stays_at_the_peak():
    settings = LearningRateSettings(peak=0.3, warmup_steps=3, kind="constant")
    assert [learning_rate_at(step, settings, total_steps=6) for step in range(6)] == pytest.approx(
        [0.1, 0.2, 0.3, 0.3, 0.3, 0.3], abs=1e-12
    )
    assert settings.ramps(6) == (3, 0)


def test_a_linear_decay_to_zero_is_peak_times_steps_left_over_decay_to_the_last_bit():
    settings = LearningRateSettings(peak=7.3e-4, warmup_steps=0, decay_steps=77)
    rates = [learning_rate_at(step, settings, total_steps=77) for step in range(77)]
    assert rates == [7.3e-4 * (77 - step) / 77 for step in range(77)]


@pytest.mark.parametrize("decay", ["linear", "1-sqrt", "cosine", "exponential"])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_no_step_of_a_decay_is_at_its_end(decay, floor):
    if decay == "exponential" and floor == 0:
        return
    settings = LearningRateSettings(peak=1.0, warmup_steps=0, decay_steps=1000, decay=decay, floor=floor)
    rates = [learning_rate_at(step, settings, total_steps=1000) for step in range(1000)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1.0
    assert floor < rates[-1] < floor + 0.01


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"kind": "cosine", "decay_steps": 5}, r'lr\.decay_steps=5 is of kind "wsd", and lr\.kind="cosine"\. Leave'),
        ({"kind": "constant", "decay_steps": 0}, r'lr\.decay_steps=0 is of kind "wsd", and lr\.kind="constant"'),
        ({"kind": "cosine", "decay": "1-sqrt"}, r'lr\.decay="1-sqrt" is of kind "wsd", and lr\.kind="cosine"'),
        ({"kind": "constant", "floor": 0.1}, r'lr\.floor=0\.1, but lr\.kind="constant" never decays'),
        ({"floor": 1.0}, "less than 1"),
        ({"decay": "sqrt"}, "'1-sqrt'"),
    ],
)
def test_contradictions_are_refused(given, found):
    with pytest.raises(ValidationError, match=found):
        LearningRateSettings(**given)


def test_a_warm_up_longer_than_the_run_is_refused_for_a_cosine_too():
    with pytest.raises(SettingsError, match=r"lr\.warmup_steps \(15\) is longer than the run \(10 steps\)"):
        LearningRateSettings(kind="cosine", warmup_steps=15).ramps(10)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "peak 0.0005, 2 steps of warm-up, 2 of linear decay to 0"),
        ({"decay": "1-sqrt", "floor": 0.1}, "peak 0.0005, 2 steps of warm-up, 2 of 1-sqrt decay to 0.1 x peak"),
        ({"kind": "cosine"}, "peak 0.0005, 2 steps of warm-up, a cosine to 0 over the other 38"),
        ({"kind": "constant", "warmup_steps": 1}, "peak 0.0005, 1 step of warm-up, then constant"),
    ],
)
def test_each_kind_in_words(given, text):
    assert LearningRateSettings(**given).describe(40) == text
