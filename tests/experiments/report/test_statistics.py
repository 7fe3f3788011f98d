"""Means, intervals and tests against scipy, statsmodels 0.15.0 and arithmetic by hand."""

import pytest
from scipy import stats

from toolkit.experiments.report.compare.statistics import estimate, holm, paired_test

FIRST = [0.80, 0.82, 0.81, 0.85, 0.79]
SECOND = [0.78, 0.81, 0.80, 0.80, 0.79]
OTHER_TASK = [0.5, 0.6, 0.7]


def _by_seed(scores: list[float]) -> dict[int, float]:
    return dict(enumerate(scores))


def test_the_t_interval_of_one_data_set() -> None:
    """The limits are those of DescrStatsW(FIRST).tconfint_mean() in statsmodels."""
    found = estimate([FIRST])
    assert found.mean == pytest.approx(0.814, abs=1e-15)
    assert found.std == pytest.approx(0.023021728866442645, rel=1e-12)
    assert found.nums == (5,)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(0.7854147480901299, rel=1e-12)
    assert found.interval.high == pytest.approx(0.8425852519098702, rel=1e-12)


def test_an_average_of_two_data_sets_is_welchs_interval() -> None:
    """Welch's interval of a difference, with the second sample negated, is that of twice the average."""
    found = estimate([FIRST, OTHER_TASK])
    welch = stats.ttest_ind(FIRST, [-score for score in OTHER_TASK], equal_var=False).confidence_interval()
    assert found.mean == pytest.approx((0.814 + 0.6) / 2)
    assert found.std is None
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((welch.low / 2, welch.high / 2), rel=1e-9)


def test_one_seed_has_no_interval() -> None:
    found = estimate([FIRST, [0.5]])
    assert found.mean == pytest.approx((0.814 + 0.5) / 2)
    assert (found.std, found.interval) == (None, None)


def test_equal_scores_have_an_interval_of_no_width() -> None:
    found = estimate([[0.5, 0.5, 0.5]])
    assert found.interval is not None
    assert (found.std, found.interval.low, found.interval.high) == (0.0, 0.5, 0.5)


def test_a_paired_test_is_scipys() -> None:
    found = paired_test(_by_seed(FIRST), _by_seed(SECOND))
    expected = stats.ttest_rel(FIRST, SECOND)
    assert found is not None
    assert found.interval is not None
    assert found.num_pairs == 5
    assert found.difference == pytest.approx(0.018)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    limits = expected.confidence_interval()
    assert (found.interval.low, found.interval.high) == pytest.approx((limits.low, limits.high), rel=1e-9)


def test_pairs_are_seeds_that_both_have() -> None:
    """0.1 and 0.3 less at the seeds 1 and 2; the seeds 0 and 9 have no partner."""
    found = paired_test({0: 0.9, 1: 0.5, 2: 0.5}, {2: 0.8, 1: 0.6, 9: 0.1})
    assert found is not None
    assert found.num_pairs == 2
    assert found.difference == pytest.approx(-0.2)
    assert paired_test({0: 0.9}, {1: 0.9}) is None


@pytest.mark.parametrize(
    ("second", "p"), [([0.5, 0.6, 0.7], 1.0), ([0.4, 0.5, 0.6], None)], ids=["equal", "all the same distance"]
)
def test_differences_without_variance_are_not_tested(second: list[float], p: float | None) -> None:
    """0.1 less three times is 0.1 but for rounding, which must not become a p-value of 1e-30."""
    found = paired_test(_by_seed(OTHER_TASK), _by_seed(second))
    assert found is not None
    assert (found.p, found.interval) == (p, None)


def test_a_single_pair_is_not_tested() -> None:
    found = paired_test({0: 0.9}, {0: 0.8})
    assert found is not None
    assert (found.num_pairs, found.p) == (1, None)


def test_holms_correction() -> None:
    """By hand: 5 x 0.005, 4 x 0.01, 3 x 0.03, then at least as much; as multipletests(method="holm") has it."""
    assert holm([0.01, 0.04, 0.03, 0.005, 0.2]) == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.2])


def test_what_is_not_tested_does_not_count() -> None:
    assert holm([None, 0.01, None, 0.04]) == [None, 0.02, None, 0.04]
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
