"""MLM: who becomes a target, what stands in its place, and what is refused."""

import numpy as np
import pytest

from toolkit.core.errors import SettingsError
from toolkit.objectives import AttentionKind, Draws, IntArray, Targets, Vocabulary, build

VOCABULARY = Vocabulary(size=1000, mask_id=4, pad_id=2, bos_id=1, eos_id=2, special_ids=(1, 2, 3))
"""The mask is not among the special ids: a tokenizer may have got it afterwards."""

BERT = {"mask_fraction": 0.8, "random_fraction": 0.1, "keep_fraction": 0.1}


def _rows(num_rows: int = 64, num_columns: int = 1024) -> tuple[IntArray, IntArray]:
    tokens_BS = np.random.default_rng(0).integers(5, 1000, (num_rows, num_columns)).astype(np.int32)
    return tokens_BS, np.ones_like(tokens_BS)


def _build(tokens_BS: IntArray, segments_BS: IntArray, *, seed: int = 0, first: int = 0, **settings: float) -> Targets:
    num_rows, num_columns = tokens_BS.shape
    draws = Draws(seed, np.arange(first, first + num_rows), num_columns=num_columns)
    return build("mlm", settings, VOCABULARY).build(tokens_BS, segments_BS, draws)


def test_targets_are_where_the_draw_falls_below_the_ratio() -> None:
    tokens_BS, segments_BS = _rows(2, 8)
    uniform_BS = Draws(0, np.arange(2), num_columns=8).uniform_BS("mlm.choice")
    targets = _build(tokens_BS, segments_BS, mask_ratio=0.5)
    assert targets.positions_N.tolist() == np.flatnonzero(uniform_BS < 0.5).tolist()
    assert 0 < len(targets.positions_N) < 16


def test_a_target_shows_the_mask_and_asks_for_the_original() -> None:
    tokens_BS, segments_BS = _rows(4, 32)
    targets = _build(tokens_BS, segments_BS, mask_ratio=0.5)
    expected_T = tokens_BS.reshape(-1).copy()
    assert targets.labels_N.tolist() == expected_T[targets.positions_N].tolist()
    expected_T[targets.positions_N] = 4
    np.testing.assert_array_equal(targets.input_ids_BS.reshape(-1), expected_T)


@pytest.mark.parametrize("ratio", [0.05, 0.4, 0.9])
def test_the_share_of_targets_is_the_ratio(ratio: float) -> None:
    """Each position independently: the count is binomial, not a quota."""
    tokens_BS, segments_BS = _rows()
    targets = _build(tokens_BS, segments_BS, mask_ratio=ratio)
    deviation = (ratio * (1 - ratio) / tokens_BS.size) ** 0.5
    assert abs(len(targets.positions_N) / tokens_BS.size - ratio) < 5 * deviation
    counts_B = np.bincount(targets.positions_N // 1024, minlength=64)
    assert 0.5 < counts_B.var() / (1024 * ratio * (1 - ratio)) < 1.7


def test_ratio_one_hides_every_ordinary_token() -> None:
    tokens_BS = np.array([[1, 10, 11, 3, 12, 2, 4, 2, 2]], dtype=np.int32)
    segments_BS = np.array([[1, 1, 1, 1, 1, 1, 1, 0, 0]], dtype=np.int32)
    targets = _build(tokens_BS, segments_BS, mask_ratio=1.0)
    assert targets.positions_N.tolist() == [1, 2, 4]
    assert targets.labels_N.tolist() == [10, 11, 12]
    assert targets.input_ids_BS.tolist() == [[1, 4, 4, 3, 4, 2, 4, 2, 2]]


def test_padding_is_told_by_the_segment_not_by_the_id() -> None:
    """A pad that looks like an ordinary word."""
    tokens_BS = np.array([[10, 11, 12, 12]], dtype=np.int32)
    targets = _build(tokens_BS, np.array([[1, 1, 0, 0]], dtype=np.int32), mask_ratio=1.0)
    assert targets.positions_N.tolist() == [0, 1]


def test_mask_random_and_keep_shares() -> None:
    tokens_BS, segments_BS = _rows(256, 1024)
    targets = _build(tokens_BS, segments_BS, mask_ratio=0.4, **BERT)
    shown_N = targets.input_ids_BS.reshape(-1)[targets.positions_N]
    num_targets = len(shown_N)
    share_of_mask = (shown_N == 4).sum() / num_targets
    share_kept = (shown_N == targets.labels_N).sum() / num_targets
    # A random token is the original one time in 996, the number of ordinary ids.
    assert abs(share_of_mask - 0.8) < 0.006
    assert abs(share_kept - (0.1 + 0.1 / 996)) < 0.005
    untouched_T = np.ones(tokens_BS.size, dtype=bool)
    untouched_T[targets.positions_N] = False
    np.testing.assert_array_equal(targets.input_ids_BS.reshape(-1)[untouched_T], tokens_BS.reshape(-1)[untouched_T])


def test_the_split_does_not_move_the_targets() -> None:
    """Which tokens are asked for does not depend on what is shown in their place."""
    tokens_BS, segments_BS = _rows(4, 64)
    plain, split = _build(tokens_BS, segments_BS), _build(tokens_BS, segments_BS, **BERT)
    np.testing.assert_array_equal(plain.positions_N, split.positions_N)
    np.testing.assert_array_equal(plain.labels_N, split.labels_N)


def test_random_replacements_cover_the_ordinary_ids_and_nothing_else() -> None:
    tokens_BS, segments_BS = _rows(64, 1024)
    targets = _build(tokens_BS, segments_BS, mask_ratio=1.0, mask_fraction=0.0, random_fraction=1.0)
    counts_V = np.bincount(targets.input_ids_BS.reshape(-1), minlength=1000)
    assert counts_V[[1, 2, 3, 4]].tolist() == [0, 0, 0, 0]
    assert counts_V[0] > 0
    assert (counts_V[5:] > 0).all()
    assert len(counts_V) == 1000


def test_keep_only_shows_the_tokens_as_they_are() -> None:
    tokens_BS, segments_BS = _rows(2, 64)
    targets = _build(tokens_BS, segments_BS, mask_fraction=0.0, keep_fraction=1.0)
    np.testing.assert_array_equal(targets.input_ids_BS, tokens_BS)
    assert len(targets.positions_N) > 0


def test_masks_follow_the_seed_and_the_sample() -> None:
    tokens_BS, segments_BS = _rows(2, 256)
    base = _build(tokens_BS, segments_BS)
    assert base.positions_N.tolist() != _build(tokens_BS, segments_BS, seed=1).positions_N.tolist()
    moved = _build(tokens_BS[1:], segments_BS[1:], first=1)
    np.testing.assert_array_equal(moved.input_ids_BS[0], base.input_ids_BS[1])


def test_it_looks_both_ways_and_hides_forty_percent_by_default() -> None:
    objective = build("mlm", {}, VOCABULARY)
    assert objective.attention is AttentionKind.BIDIRECTIONAL
    assert len(_build(*_rows(256, 1024)).positions_N) / (256 * 1024) == pytest.approx(0.4, abs=0.005)


@pytest.mark.parametrize("ratio", [1.4, 0, -0.1, float("nan"), "much"])
def test_a_ratio_outside_its_bounds_is_refused(ratio: object) -> None:
    with pytest.raises(SettingsError, match=r"invalid value for objectives\.mlm\.mask_ratio: expected") as caught:
        build("mlm", {"mask_ratio": ratio}, VOCABULARY)
    assert "above 0 and at most 1" in str(caught.value)


def test_shares_that_do_not_sum_to_one_are_refused_with_the_sum() -> None:
    with pytest.raises(SettingsError, match=r"= 1\.2: expected a sum of 1"):
        build("mlm", {"random_fraction": 0.1, "keep_fraction": 0.1}, VOCABULARY)


def test_a_vocabulary_without_a_mask_token_is_refused_where_it_is_needed() -> None:
    without = Vocabulary(size=1000, mask_id=None, pad_id=2, bos_id=1, eos_id=2, special_ids=(1, 2))
    with pytest.raises(SettingsError, match="--mask-token"):
        build("mlm", {}, without)
    tokens_BS, segments_BS = _rows(1, 64)
    objective = build("mlm", {"mask_ratio": 1.0, "mask_fraction": 0, "random_fraction": 1}, without)
    targets = objective.build(tokens_BS, segments_BS, Draws(0, np.arange(1), num_columns=64))
    assert len(targets.positions_N) == 64
    assert targets.input_ids_BS.min() >= 0
