"""Mixtures: what is one, and how many rows of each step its objectives get."""

from fractions import Fraction

import numpy as np
import pytest
from pydantic import ValidationError

from toolkit.objectives import PhaseSettings
from toolkit.objectives.mixture import MixEntry, dealt_rows
from toolkit.objectives.schedule import Phase, PhaseRows


def _mix(*shares):
    return [
        MixEntry.model_validate({"objective": f"objective {number}", "share": share})
        for number, share in enumerate(shares)
    ]


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.1, 0.9), (0.3, 0.6, 0.1), (0.333333, 0.333333, 0.333334), (1.0,)])
@pytest.mark.parametrize("rows", [1, 7, 8, 1152])
def test_sums_of_rows_follow_the_shares(shares, rows):
    """All rows of each step are dealt, and what an objective got by any step is its share, within a row or two."""
    dealt = dealt_rows(_mix(*shares), [rows] * 1000)
    assert (dealt >= 0).all()
    assert (dealt.sum(axis=1) == rows).all()
    due = np.arange(1, 1001)[:, None] * rows * np.array(shares)
    assert np.abs(np.cumsum(dealt, axis=0) - due).max() < (1 if len(shares) < 3 else 2)


def test_shares_are_what_is_written():
    """0.1 of 10 rows is one in every step: as the nearest binary fraction, a tenth would be a bit more."""
    assert (dealt_rows(_mix(0.1, 0.9), [10] * 100_000)[:, 0] == 1).all()


def test_a_ramp_deals_the_sum_of_its_shares():
    """Also where steps grow; its first and last step are what its ends say."""
    ramp = _mix({"from": 1.0, "to": 0.0}, {"from": 0.0, "to": 1.0})
    sizes = [4] * 100 + [8] * 101
    dealt = dealt_rows(ramp, sizes)
    assert dealt[0].tolist() == [4, 0]
    # As the weights in the loss, the only step of a phase has its last shares.
    assert dealt_rows(ramp, [4]).tolist() == [[0, 4]]
    due = np.cumsum([rows * (1 - Fraction(step, 200)) for step, rows in enumerate(sizes)])
    assert max(abs(int(got) - want) for got, want in zip(np.cumsum(dealt[:, 0]), due, strict=True)) < 1
    entry = ramp[0]
    assert (entry.share_at(0), entry.share_at(0.25), entry.share_at(1)) == (1, 0.75, 0)


def test_a_ramp_that_is_left_on_the_way_has_had_the_shares_so_far() -> None:
    """Of 11 steps from 1 to 0, the first 6 go from 1 to 0.5, whether a checkpoint or a branch leaves it there."""
    ramp = _mix({"from": 1.0, "to": 0.0}, {"from": 0.0, "to": 1.0})
    whole, left = Phase(0, ramp, 4, 15, PhaseRows(8)), Phase(0, ramp, 4, 10, PhaseRows(8), longer=11)
    assert (whole.mean_share(ramp[0]), whole.mean_share(ramp[0], stop=10)) == (0.5, 0.75)
    assert left.mean_share(ramp[0]) == 0.75
    assert [left.progress_at(step) for step in (4, 9)] == [0, 0.5]


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ({}, "a phase has neither. Give it exactly one of objective and mix"),
        ({"objective": "clm", "mix": [{"objective": "mlm", "share": 1.0}]}, "has objective = 'clm' and a mix"),
        ({"mix": []}, "an empty mix"),
        ({"mix": [{"objective": "clm", "share": 0.5}, {"objective": "clm", "share": 0.5}]}, "'clm' twice"),
        (
            {"mix": [{"objective": "clm", "share": 0.5}, {"objective": "mlm", "share": 0.4}]},
            "shares that sum to 0.5 + 0.4 = 0.9 at its first step, expected 1",
        ),
        (
            {
                "mix": [
                    {"objective": "clm", "share": {"from": 1.0, "to": 0.5}},
                    {"objective": "mlm", "share": {"from": 0.0, "to": 1.0}},
                ]
            },
            "0.5 + 1 = 1.5 at its last step",
        ),
        ({"mix": [{"objective": "clm", "share": 0.0}, {"objective": "mlm", "share": 1.0}]}, "greater than 0"),
        ({"mix": [{"objective": "clm", "share": 1.0, "weight": 0.0}]}, "greater than 0"),
    ],
)  # fmt: skip
def test_what_is_no_mixture_is_refused(phase, message):
    with pytest.raises(ValidationError, match=message.replace("+", r"\+")):
        PhaseSettings.model_validate({**phase, "steps": 3})


def test_its_name_is_that_of_its_objectives():
    phase = PhaseSettings.model_validate(
        {"mix": [{"objective": "clm", "share": 0.25, "weight": 2.0}, {"objective": "mlm", "share": 0.75}], "steps": 3}
    )
    assert phase.name == "clm+mlm"
    assert [str(entry) for entry in phase.entries] == ["0.25 clm (weight 2)", "0.75 mlm"]
    assert phase.renamed({"clm": "a", "mlm": "b"}).name == "a+b"
