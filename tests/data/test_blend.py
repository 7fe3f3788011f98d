"""Blends: exact shares in every block, for ever; each corpus in its own order; the same whoever asks."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from toolkit.data import Blend, Corpus, DataSettings, Order, Rows, RowStream, open_rows
from toolkit.testing.corpora import write_token_corpus

weights = st.lists(
    st.one_of(st.integers(1, 50).map(float), st.floats(1e-3, 1e3), st.floats(1e-6, 1.0)), min_size=1, max_size=6
)


def _located(blend: Blend, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    return blend.locate(np.arange(first, stop))


def test_three_to_one_by_hand() -> None:
    """Blocks of 64: 48 rows of the first corpus and 16 of the second, each corpus's positions one after another."""
    blend = Blend([3, 1], seed=7)
    assert blend.block_rows == 64
    assert blend.shares == (Fraction(3, 4), Fraction(1, 4))
    corpora_B, own_B = _located(blend, 0, 640)
    for block in range(10):
        within = slice(64 * block, 64 * block + 64)
        for corpus, rows in ((0, 48), (1, 16)):
            own = own_B[within][corpora_B[within] == corpus]
            assert sorted(own.tolist()) == list(range(rows * block, rows * block + rows))


def test_decimal_weights_mean_what_they_say() -> None:
    """0.1 has no exact binary fraction; as one tenth it gives blocks that are all alike."""
    blend = Blend([0.7, 0.2, 0.1], seed=0)
    assert blend.block_rows == 70
    corpora_B, _ = _located(blend, 0, 70 * 50)
    counts = np.stack([np.bincount(block, minlength=3) for block in corpora_B.reshape(-1, 70)])
    np.testing.assert_array_equal(counts, np.tile([49, 14, 7], (50, 1)))
    assert Blend([7, 2, 1], seed=0).shares == blend.shares


def test_rows_that_shares_leave_over_go_to_the_largest_remainders() -> None:
    """Shares of too fine a denominator for blocks that are all alike: 4,096 rows x 0.50007, 0.30001 and 0.19992."""
    blend = Blend([0.50007, 0.30001, 0.19992], seed=0)
    assert blend.block_rows == 4096
    # 2,048.28672, 1,228.84096 and 818.87232; then 4,096.57344, 2,457.68192 and 1,637.74464.
    assert [blend.counts(blocks) for blocks in (1, 2)] == [[2048, 1229, 819], [4096, 2458, 1638]]


@given(weights, st.integers(0, 2**40))
@settings(max_examples=200, deadline=None)
def test_every_corpus_is_less_than_a_row_from_its_share_after_any_block(given_weights: list[float], block: int) -> None:
    blend = Blend(given_weights, seed=1)
    before, after = blend.counts(block), blend.counts(block + 1)
    assert sum(before) == block * blend.block_rows
    for count, following, share in zip(before, after, blend.shares, strict=True):
        assert abs(count - block * blend.block_rows * share) < 1
        assert following >= count


@given(weights, st.integers(0, 10**13), st.integers(0, 2**62))
@settings(max_examples=60, deadline=None)
def test_no_position_of_a_corpus_is_left_out_or_used_twice(given_weights: list[float], start: int, seed: int) -> None:
    """Over one whole block anywhere, each corpus's own positions are exactly those between two closed forms."""
    blend = Blend(given_weights, seed=seed)
    if blend.block_rows > 2**17:
        return
    block = start // blend.block_rows
    corpora_B, own_B = _located(blend, block * blend.block_rows, (block + 1) * blend.block_rows)
    before, after = blend.counts(block), blend.counts(block + 1)
    for corpus in range(len(given_weights)):
        own = np.sort(own_B[corpora_B == corpus])
        np.testing.assert_array_equal(own, np.arange(before[corpus], after[corpus]))


@given(weights, st.lists(st.integers(0, 10**13), min_size=1, max_size=40), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_a_position_does_not_depend_on_its_batch(
    given_weights: list[float], positions: list[int], batch_rows: int
) -> None:
    blend = Blend(given_weights, seed=3)
    sample_indices_B = np.array(positions)
    together = np.stack(blend.locate(sample_indices_B))
    parts = [
        np.stack(blend.locate(sample_indices_B[at : at + batch_rows])) for at in range(0, len(positions), batch_rows)
    ]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), together)


def test_a_rare_corpus_comes_once_in_a_long_block() -> None:
    """A share of a millionth: blocks of a million positions, still without any table."""
    blend = Blend([999_999, 1], seed=0)
    assert blend.block_rows == 10**6
    corpora_B, own_B = _located(blend, 3 * 10**6, 4 * 10**6)
    assert own_B[corpora_B == 1].tolist() == [3]


def test_the_mix_has_no_period_and_no_clumps() -> None:
    blend = Blend([1, 1], seed=5)
    corpora_B, _ = _located(blend, 0, 64 * 2000)
    blocks = corpora_B.reshape(-1, 64)
    assert np.unique(blocks, axis=0).shape[0] == 2000
    # Each place of a block has each corpus equally often: 1,000 times, deviation 22.
    assert abs(blocks.sum(axis=0) - 1000).max() < 120
    other = _located(Blend([1, 1], seed=6), 0, 64 * 2000)[0]
    assert 0.45 < (other == corpora_B).mean() < 0.55


def test_the_mix_is_part_of_every_run_that_was_ever_made() -> None:
    """A change here makes every resumed run see other rows."""
    corpora_B, own_B = _located(Blend([3, 1, 0.5], seed=1234), 10**13, 10**13 + 12)
    assert corpora_B.tolist() == [0, 2, 1, 0, 1, 0, 0, 1, 2, 0, 1, 0]
    assert own_B.tolist() == [
        6666666666649, 1111111111109, 2222222222220, 6666666666655, 2222222222221, 6666666666640, 6666666666657,
        2222222222210, 1111111111112, 6666666666717, 2222222222227, 6666666666701,
    ]  # fmt: skip


def _corpus(folder: Path, first_id: int, rows: int) -> Rows:
    """Rows of 8 whose tokens are `first_id`, `first_id` + 1, ...: each row is known by its first token."""
    tokens = np.arange(first_id, first_id + 8 * rows)
    write_token_corpus(folder, [tokens], vocabulary_size=5000)
    return open_rows(Corpus(folder), DataSettings(train=str(folder), windows="blocks", sequence_length=8), seed=0)


@pytest.fixture
def parts(tmp_path: Path) -> list[tuple[Rows, Order]]:
    opened = [_corpus(tmp_path / "a", 0, 100), _corpus(tmp_path / "b", 1000, 30), _corpus(tmp_path / "c", 2000, 7)]
    return [(rows, Order(rows.num_rows, seed=9, shuffle="global")) for rows in opened]


def test_a_stream_of_a_blend_reads_every_corpus_in_its_own_order(parts: list[tuple[Rows, Order]]) -> None:
    blend = Blend([2, 1, 1], seed=9)
    stream = RowStream.of_blend(parts, blend)
    sample_indices_B = np.arange(64 * 20)
    read = stream.at(sample_indices_B)
    assert read.tokens_BS.shape == read.segments_BS.shape == (1280, 8)
    corpora_B = read.tokens_BS[:, 0] // 1000
    np.testing.assert_array_equal(np.bincount(corpora_B), [640, 320, 320])
    _, own_B = blend.locate(sample_indices_B)
    for number, (rows, order) in enumerate(parts):
        alone = RowStream(rows, order).at(np.arange(np.count_nonzero(corpora_B == number)))
        in_order = np.argsort(own_B[corpora_B == number])
        np.testing.assert_array_equal(read.tokens_BS[corpora_B == number][in_order], alone.tokens_BS)


def test_epochs_are_each_corpus_its_own(parts: list[tuple[Rows, Order]]) -> None:
    """1,280 positions, a quarter of them from 7 rows: 45 whole epochs and 5 rows of the next."""
    located = RowStream.of_blend(parts, Blend([2, 1, 1], seed=9)).locate(np.arange(1280))
    epochs = located.epochs_B[located.corpora_B == 2]
    np.testing.assert_array_equal(np.bincount(epochs), [7] * 45 + [5])
    for epoch in range(45):
        rows = located.rows_B[(located.corpora_B == 2) & (located.epochs_B == epoch)]
        assert sorted(rows.tolist()) == list(range(7))


@pytest.mark.parametrize("batch_rows", [1, 5, 64, 1000])
def test_a_stream_gives_the_same_rows_in_any_batches(parts: list[tuple[Rows, Order]], batch_rows: int) -> None:
    stream = RowStream.of_blend(parts, Blend([0.3, 0.5, 0.2], seed=9))
    sample_indices_B = np.arange(1000)
    whole = stream.at(sample_indices_B)
    some = [stream.at(sample_indices_B[at : at + batch_rows]).tokens_BS for at in range(0, 1000, batch_rows)]
    np.testing.assert_array_equal(np.concatenate(some), whole.tokens_BS)
    assert stream.at(sample_indices_B[:0]).tokens_BS.shape == (0, 8)


def test_a_blend_of_one_corpus_is_that_corpus(parts: list[tuple[Rows, Order]]) -> None:
    sample_indices_B = np.arange(300)
    alone, blended = RowStream(*parts[0]), RowStream.of_blend(parts[:1], Blend([0.1], seed=9))
    np.testing.assert_array_equal(blended.at(sample_indices_B).tokens_BS, alone.at(sample_indices_B).tokens_BS)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], "a blend needs a corpus"),
        ([{"path": "a", "weight": -1.0}], "greater than 0"),
        ([{"path": "a", "weight": float("inf")}], "finite"),
        ([{"path": "a", "weight": 1, "wieght": 2}], "wieght"),
        ([{"path": "a", "weight": 1}, {"path": "b", "weight": 1e-12}], "less than one row in 1,000,000,000"),
    ],
)
def test_weights_that_cannot_be(train: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataSettings(train=train)


_BOTH = [{"path": "a"}, {"path": "b"}]


@pytest.mark.parametrize(
    ("train", "temperature", "message"),
    [
        (_BOTH, 5.0, "less than or equal to 1"),
        (_BOTH, -0.1, "greater than or equal to 0"),
        (_BOTH, float("nan"), "less than or equal to 1"),
        ("a", 0.7, "data.weights is for corpora of a blend"),
        ([{"path": "a", "weight": 1}, {"path": "b", "weight": 1}], 0.7, "data.weights is for corpora of a blend"),
        ([{"path": "a"}, {"path": "b", "weight": 1}], 0.7, "Leave weight out of data.train"),
    ],
)
def test_temperatures_that_cannot_be(train: object, temperature: float, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataSettings(train=train, weights={"temperature": temperature})


@pytest.mark.parametrize(
    ("temperature", "weights", "second"),
    [
        (1.0, [1e6, 1e4], 1 / 101),
        (0.5, [1e3, 1e2], 1 / 11),
        (0.0, [1.0, 1.0], 1 / 2),
        (0.7, [15848.9, 630.957], 0.0383),
    ],
)
def test_weights_by_temperature(temperature: float, weights: list[float], second: float) -> None:
    """n^t: of a million tokens and ten thousand."""
    settings = DataSettings(train=_BOTH, weights={"temperature": temperature})
    assert isinstance(settings.train, tuple)
    found = [settings.weight_of(entry, size) for entry, size in zip(settings.train, (10**6, 10**4), strict=True)]
    assert found == weights
    assert float(Blend(found, seed=1).shares[1]) == pytest.approx(second, rel=1e-3)
