"""Draws: what they depend on, and that they are uniform and independent enough to mask with."""

import numpy as np

from toolkit.core.draws import Draws


def _uniform(seed: int, positions: list[int], stream: str = "mask", num_columns: int = 8) -> np.ndarray:
    return Draws(seed, np.array(positions), num_columns=num_columns).uniform_BS(stream)


def test_they_are_float32_in_the_half_open_interval() -> None:
    uniform_BS = _uniform(1, list(range(512)), num_columns=512)
    assert uniform_BS.dtype == np.float32
    assert uniform_BS.shape == (512, 512)
    assert uniform_BS.min() >= 0
    assert uniform_BS.max() < 1


def test_the_values_are_part_of_every_run_that_was_ever_made() -> None:
    """A change here changes the masks of every resumed run; hex keeps all 24 bits."""
    assert [float(x).hex() for x in _uniform(1234, [5])[0, :3]] == [
        "0x1.4b00800000000p-3",
        "0x1.6cfff00000000p-2",
        "0x1.c219880000000p-2",
    ]


def test_they_belong_to_the_sample() -> None:
    together = _uniform(1, [10, 11, 12])
    np.testing.assert_array_equal(_uniform(1, [12, 10])[1], together[0])
    np.testing.assert_array_equal(_uniform(1, [12])[0], together[2])


def test_more_columns_do_not_move_the_first_ones() -> None:
    np.testing.assert_array_equal(_uniform(1, [7], num_columns=8), _uniform(1, [7], num_columns=64)[:, :8])


def test_seed_stream_and_position_all_matter() -> None:
    base = _uniform(1, [2**40], num_columns=64)
    for other in (
        _uniform(2, [2**40], num_columns=64),
        _uniform(1, [2**40 + 1], num_columns=64),
        _uniform(1, [0], num_columns=64),
        _uniform(1, [2**40 + 2**32], num_columns=64),
        _uniform(1, [2**40], "other", num_columns=64),
    ):
        assert (other == base).sum() <= 1


def test_they_are_uniform() -> None:
    """Chi-square over 256 bins: the mean of the statistic is 255, its deviation 22.6."""
    uniform_BS = _uniform(3, list(range(1024)), num_columns=1024)
    expected = uniform_BS.size / 256
    counts, _ = np.histogram(uniform_BS, bins=256, range=(0, 1))
    assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 5 * 22.6


def test_neighbours_do_not_correlate() -> None:
    """Correlation times root of the count is about standard normal."""
    first = _uniform(3, list(range(1024)), num_columns=1024)
    pairs = {
        "streams": (first, _uniform(3, list(range(1024)), "other", num_columns=1024)),
        "seeds": (first, _uniform(4, list(range(1024)), num_columns=1024)),
        "rows": (first[1:], first[:-1]),
        "columns": (first[:, 1:], first[:, :-1]),
        "diagonals": (first[1:, 1:], first[:-1, :-1]),
    }
    for name, (left, right) in pairs.items():
        score = np.corrcoef(left.ravel(), right.ravel())[0, 1] * np.sqrt(left.size)
        assert abs(score) < 5, name


def test_masked_counts_have_the_variance_of_a_coin() -> None:
    is_masked_BS = _uniform(3, list(range(4096)), num_columns=512) < 0.4
    assert abs(is_masked_BS.sum(axis=1).var() / (512 * 0.24) - 1) < 0.12
    assert abs(is_masked_BS.sum(axis=0).var() / (4096 * 0.24) - 1) < 0.35
