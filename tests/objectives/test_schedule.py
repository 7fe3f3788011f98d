"""The schedule: lengths to steps, the phase of each step, and what is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from toolkit.core.errors import SettingsError
from toolkit.objectives import PhaseSettings
from toolkit.objectives.schedule import Schedule


def _resolve(*phases: tuple[str, dict[str, Any]], total_steps: int | None = None, rows: int = 8) -> Schedule:
    return Schedule.resolve(
        [PhaseSettings(objective=objective, **length) for objective, length in phases],
        total_steps=total_steps,
        global_batch_rows=rows,
        sequence_length=256,
    )


def _spans(schedule: Schedule) -> list[tuple[int, str, int, int]]:
    return [(phase.index, phase.objective, phase.start, phase.stop) for phase in schedule.phases]


def test_steps() -> None:
    schedule = _resolve(("clm", {"steps": 3}), ("mlm", {"steps": 2}))
    assert _spans(schedule) == [(0, "clm", 0, 3), (1, "mlm", 3, 5)]
    assert schedule.total_steps == 5
    assert [schedule.phase_at(step).objective for step in range(5)] == ["clm", "clm", "clm", "mlm", "mlm"]


def test_phases_may_repeat() -> None:
    schedule = _resolve(("clm", {"steps": 1}), ("mlm", {"steps": 1}), ("clm", {"steps": 2}))
    assert [schedule.phase_at(step).index for step in range(4)] == [0, 1, 2, 2]


def test_tokens_count_positions_and_are_rounded_up_to_whole_steps() -> None:
    """A step is 8 x 256 = 2,048 positions."""
    schedule = _resolve(("clm", {"tokens": 4096}), ("mlm", {"tokens": 4097}), ("clm", {"tokens": 1}))
    assert _spans(schedule) == [(0, "clm", 0, 2), (1, "mlm", 2, 5), (2, "clm", 5, 6)]


def test_steps_and_tokens_mix() -> None:
    assert _resolve(("clm", {"steps": 4}), ("mlm", {"tokens": 2048}), total_steps=5).total_steps == 5


@pytest.mark.parametrize(
    ("fractions", "total_steps", "stops"),
    [
        ([0.5, 0.5], 40, [20, 40]),
        ([0.25, 0.75], 10, [2, 10]),
        ([0.1, 0.2, 0.7], 10, [1, 3, 10]),
        ([1 / 3, 1 / 3, 1 / 3], 100, [33, 67, 100]),
        ([0.1] * 10, 1000, list(range(100, 1001, 100))),
        ([0.7, 0.3], 42_000, [29_400, 42_000]),
    ],
)
def test_fractions_end_at_rounded_cumulative_sums(fractions: list[float], total_steps: int, stops: list[int]) -> None:
    """The rounding errors of single phases do not add up: the last phase ends at the budget."""
    schedule = _resolve(*[("clm", {"fraction": fraction}) for fraction in fractions], total_steps=total_steps)
    assert [phase.stop for phase in schedule.phases] == stops
    assert [phase.start for phase in schedule.phases] == [0, *stops[:-1]]


def test_phase_at_is_a_pure_function_of_the_step() -> None:
    schedule = _resolve(("clm", {"fraction": 0.5}), ("mlm", {"fraction": 0.5}), total_steps=40)
    assert schedule.phase_at(20).objective == "mlm"
    assert schedule.phase_at(19).objective == "clm"
    assert schedule.phase_at(39).objective == "mlm"
    assert schedule.phase_at(0).objective == "clm"
    for outside in (-1, 40):
        with pytest.raises(AssertionError):
            schedule.phase_at(outside)


@pytest.mark.parametrize(
    ("phases", "total_steps", "message"),
    [
        ([{"steps": 3}, {"steps": 4}], 8, r"train.steps=8.*3 \(clm\) \+ 4 \(clm\) = 7"),
        ([{"tokens": 2049}], 1, r"2 \(clm\) = 2 steps"),
        ([{"fraction": 0.01}, {"fraction": 0.99}], 10, "phase 1 .* gets none of"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(
    phases: list[dict[str, Any]], total_steps: int | None, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        _resolve(*[("clm", phase) for phase in phases], total_steps=total_steps)


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ({"steps": 3, "fraction": 0.5}, "steps = 3 and fraction = 0.5"),
        ({}, "no length"),
        ({"fraction": 1.5}, "less than or equal to 1"),
        ({"steps": 3, "epochs": 2}, "steps = 3 and epochs = 2"),
        ({"rounds": 2}, "Extra inputs"),
    ],
)
def test_a_phase_has_exactly_one_length(length: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PhaseSettings(objective="clm", **length)
