"""The order of rows: a permutation each epoch, in O(1), the same for everyone who asks."""

import numpy as np
import pytest

from toolkit.data import Order, order

SIZES = [1, 2, 3, 4, 5, 7, 8, 10, 16, 17, 97, 100, 256, 1000, 1023, 1024, 1025, 4999, 65_536, 70_001, 200_003]


@pytest.mark.parametrize("shuffle", ["global", "blocks"])
@pytest.mark.parametrize("num_rows", SIZES)
def test_every_epoch_has_every_row_once(num_rows: int, shuffle: str) -> None:
    order = Order(num_rows, seed=5, shuffle=shuffle)
    for epoch in (0, 1, 1000):
        rows_B, epochs_B = order.locate(np.arange(epoch * num_rows, (epoch + 1) * num_rows))
        assert rows_B.dtype == epochs_B.dtype == np.int64
        np.testing.assert_array_equal(np.sort(rows_B), np.arange(num_rows))
        np.testing.assert_array_equal(epochs_B, epoch)


@pytest.mark.parametrize("shuffle", ["global", "blocks"])
def test_epochs_and_seeds_differ(shuffle: str) -> None:
    sample_indices_B = np.arange(3000)
    order = Order(1000, seed=5, shuffle=shuffle)
    first, second, third = order.locate(sample_indices_B)[0].reshape(3, 1000)
    other_seed = Order(1000, seed=6, shuffle=shuffle).locate(sample_indices_B[:1000])[0]
    for one, another in ((first, second), (second, third), (first, other_seed), (first, np.arange(1000))):
        assert (one == another).sum() < 10  # on average 1 of 1,000 places agrees


@pytest.mark.parametrize("shuffle", ["global", "blocks"])
def test_a_position_does_not_depend_on_its_batch(shuffle: str) -> None:
    order = Order(100_000, seed=1, shuffle=shuffle)
    sample_indices_B = np.array([0, 5, 99_999, 100_000, 250_000, 123_456_789])
    together = order.locate(sample_indices_B)
    for index, position in enumerate(sample_indices_B):
        alone = order.locate(np.array([position]))
        assert (alone[0][0], alone[1][0]) == (together[0][index], together[1][index])


def test_the_order_is_part_of_every_run_that_was_ever_made() -> None:
    """A change here makes every resumed run see other rows."""
    sample_indices_B = np.arange(6)
    assert Order(10**9, seed=1234, shuffle="global").locate(sample_indices_B)[0].tolist() == [
        757657606, 317376901, 910387906, 299171403, 371630307, 708668602,
    ]  # fmt: skip
    assert Order(10**9, seed=1234, shuffle="blocks").locate(sample_indices_B)[0].tolist() == [
        845966984, 938987712, 603320675, 866692361, 772863274, 799519114,
    ]  # fmt: skip


@pytest.mark.parametrize("num_rows", [3, 5, 12])
def test_each_row_comes_at_each_place_equally_often(num_rows: int) -> None:
    """Over 6,000 epochs; chi-square with (n - 1)^2 degrees of freedom, at most 5 deviations above the mean."""
    num_epochs = 6000
    rows_B, _ = Order(num_rows, seed=3, shuffle="global").locate(np.arange(num_rows * num_epochs))
    places = np.tile(np.arange(num_rows), num_epochs)
    counts = np.zeros((num_rows, num_rows))
    np.add.at(counts, (places, rows_B), 1)
    expected, freedom = num_epochs / num_rows, (num_rows - 1) ** 2
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5


def test_neighbours_come_from_everywhere() -> None:
    """In every 1,000 successive positions, each tenth of the corpus has its share; successive rows are unrelated."""
    rows_B, _ = Order(1_000_000, seed=0, shuffle="global").locate(np.arange(200_000))
    tenths = rows_B.reshape(-1, 1000) // 100_000
    counts = np.stack([(tenths == tenth).sum(axis=1) for tenth in range(10)])
    assert counts.min() > 40  # mean 100, deviation 9.5
    assert counts.max() < 160
    assert abs(np.corrcoef(rows_B[:-1], rows_B[1:])[0, 1]) < 0.01


def test_blocks_stay_near_a_few_places_for_a_while() -> None:
    """In a corpus of a million rows, the first 65,536 positions read 64 blocks of 1,024 neighbours, mixed."""
    rows_B, _ = Order(1_000_000, seed=0, shuffle="blocks").locate(np.arange(65_536))
    blocks = rows_B // 1024
    assert np.unique(blocks).size == 64
    assert np.unique(blocks[:512]).size > 50
    assert np.ptp(np.unique(blocks)) > 500  # the 64 come from all over the corpus


def test_each_epoch_reads_the_blocks_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_ROWS_PER_BLOCK", 4)
    monkeypatch.setattr(order, "_BLOCKS_PER_WINDOW", 2)
    rows_B, _ = Order(4000, seed=0, shuffle="blocks").locate(np.arange(8000))
    windows = [[set(window) for window in (epoch // 4).reshape(-1, 8).tolist()] for epoch in np.split(rows_B, 2)]
    assert {len(blocks) for blocks in windows[0] + windows[1]} == {2}
    assert sum(blocks in windows[1] for blocks in windows[0]) < 10


@pytest.mark.parametrize("shuffle", ["global", "blocks"])
def test_epochs_beyond_32_bits_differ(shuffle: str) -> None:
    orders = Order(100, seed=0, shuffle=shuffle)
    near, far = (orders.locate(np.arange(100) + 100 * (epoch + 1))[0] for epoch in (0, 2**32))
    assert (near == far).sum() < 10


def test_huge_corpora_need_no_memory() -> None:
    rows_B, epochs_B = Order(2**50, seed=0, shuffle="global").locate(np.array([0, 2**50 - 1, 2**50, 2**52]))
    assert epochs_B.tolist() == [0, 0, 1, 4]
    assert 0 <= rows_B.min() <= rows_B.max() < 2**50
