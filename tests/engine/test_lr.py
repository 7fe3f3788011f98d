"""Warm-up, stable, decay, at steps small enough to check by hand."""

import pytest

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


def test_ramps_longer_than_the_run_are_refused():
    with pytest.raises(SettingsError, match=r"lr.warmup_steps \(15\) and lr.decay_steps \(10\).*20 steps"):
        LearningRateSettings(warmup_steps=15, decay_steps=10).ramps(20)
