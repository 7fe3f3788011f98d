"""Masked diffusion: the ratio of a row, and what its targets count."""

import numpy as np
import pytest

from tests.support.objectives import VOCABULARY, full_rows, targets_of
from toolkit.core.errors import SettingsError
from toolkit.objectives import Targets, build
from toolkit.objectives.base import at_progress


def _build(num_rows: int, num_columns: int, **settings: float) -> Targets:
    """Of full rows of ordinary tokens."""
    tokens_BS, segments_BS = full_rows(num_rows, num_columns)
    targets = targets_of("diffusion", tokens_BS, segments_BS, **settings)
    expected_T = tokens_BS.reshape(-1).copy()
    assert targets.labels_N.tolist() == expected_T[targets.positions_N].tolist()
    expected_T[targets.positions_N] = 4
    np.testing.assert_array_equal(targets.input_ids_BS.reshape(-1), expected_T)
    return targets


def _ratios(targets: Targets, num_columns: int) -> dict[int, float]:
    """Ratio of each row that has targets, from their weights."""
    assert targets.weights_N is not None
    rows_N = targets.positions_N // num_columns
    ratios = {row: np.unique(1 / targets.weights_N[rows_N == row]) for row in np.unique(rows_N).tolist()}
    assert all(len(of_row) == 1 for of_row in ratios.values())
    return {row: float(of_row[0]) for row, of_row in ratios.items()}


def test_a_row_hides_the_share_that_it_drew_and_its_targets_weigh_one_over_it() -> None:
    targets = _build(300, 2000)
    ratios = _ratios(targets, 2000)
    counts = np.bincount(targets.positions_N // 2000, minlength=300)
    for row, ratio in ratios.items():
        assert counts[row] == pytest.approx(2000 * ratio, abs=5 * (2000 * ratio * (1 - ratio)) ** 0.5 + 1)
    # Each token counts 1 in the mean, whatever its row drew: five standard deviations.
    assert targets.weights_N is not None
    assert targets.weights_N.sum() / (300 * 2000) == pytest.approx(1, abs=0.03)


def test_ratios_are_uniform_between_the_least_and_one() -> None:
    for least in (0.001, 0.4):
        ratios = np.array(list(_ratios(_build(4000, 64, min_ratio=least), 64).values()))
        assert ratios.min() >= least
        assert ratios.max() <= 1
        if least == 0.4:
            assert len(ratios) == 4000
            shares, _ = np.histogram(ratios, bins=10, range=(0.4, 1))
            np.testing.assert_allclose(shares / 4000, 0.1, atol=0.024)


def test_the_ratio_of_a_row_follows_the_seed_and_the_sample_and_not_the_progress() -> None:
    tokens_BS = np.full((2, 256), 10, dtype=np.int32)
    objective = build("diffusion", {}, VOCABULARY)
    assert at_progress(objective, 0.2) is objective
    both, other = (targets_of("diffusion", tokens_BS, np.ones_like(tokens_BS), seed=seed, first=5) for seed in (3, 4))
    first, second = _ratios(both, 256).values()
    assert first != second
    assert set(_ratios(other, 256).values()).isdisjoint({first, second})


@pytest.mark.parametrize("least", [0, 1, -0.1])
def test_a_least_ratio_outside_its_bounds_is_refused(least: float) -> None:
    with pytest.raises(SettingsError, match=r"objectives\.diffusion\.min_ratio: expected a value"):
        build("diffusion", {"min_ratio": float(least)}, VOCABULARY)
