"""MNTP: MLM whose hidden tokens are asked for at the position before."""

import numpy as np
import pytest

from tests.support.objectives import full_rows, targets_of


def test_a_hidden_token_is_asked_for_at_the_position_before_and_first_tokens_stay() -> None:
    tokens_BS = np.array([[10, 11, 12, 3, 13, 20, 21, 30, 40], [1, 10, 11, 12, 50, 51, 52, 2, 2]], dtype=np.int32)
    segments_BS = np.array([[1, 1, 1, 1, 1, 2, 2, 3, 4], [1, 1, 1, 1, 2, 2, 2, 0, 0]], dtype=np.int32)
    targets = targets_of("mntp", tokens_BS, segments_BS, mask_ratio=1.0)
    assert targets.input_ids_BS.tolist() == [[10, 4, 4, 3, 4, 20, 4, 30, 40], [1, 4, 4, 4, 50, 4, 4, 2, 2]]
    assert targets.positions_N.tolist() == [0, 1, 3, 5, 9, 10, 11, 13, 14]
    assert targets.labels_N.tolist() == [11, 12, 13, 21, 10, 11, 12, 51, 52]


@pytest.mark.parametrize("ratio", [0.15, 0.4])
def test_it_hides_as_mlm_does_with_masks_of_its_own(ratio: float) -> None:
    tokens_BS, _ = full_rows()
    segments_BS = np.tile(np.arange(1024) // 16 + 1, (64, 1))
    targets = targets_of("mntp", tokens_BS, segments_BS, mask_ratio=ratio)
    hidden_N = targets.positions_N + 1
    assert targets.labels_N.tolist() == tokens_BS.reshape(-1)[hidden_N].tolist()
    expected_T = tokens_BS.reshape(-1).copy()
    expected_T[hidden_N] = 4
    np.testing.assert_array_equal(targets.input_ids_BS.reshape(-1), expected_T)
    assert not (hidden_N % 16 == 0).any()
    # 15 of 16 tokens can be hidden; five standard deviations.
    assert hidden_N.size / (64 * 1024 * 15 / 16) == pytest.approx(ratio, abs=5 * (ratio * (1 - ratio) / 61440) ** 0.5)
    same = np.isin(targets_of("mlm", tokens_BS, segments_BS, mask_ratio=ratio).positions_N, hidden_N).mean()
    assert same == pytest.approx(ratio * 15 / 16, abs=0.02)


def test_a_segment_gets_its_fewest_targets_without_its_first_token() -> None:
    tokens_BS = np.arange(5, 69, dtype=np.int32).reshape(2, 32)
    segments_BS = np.tile(np.arange(32) // 4 + 1, (2, 1))
    targets = targets_of("mntp", tokens_BS, segments_BS, mask_ratio=0.01, min_targets=3)
    assert targets.positions_N.tolist() == [position for position in range(64) if position % 4 != 3]
