"""CLM on rows small enough to read."""

from dataclasses import replace
from functools import partial

from tests.support.objectives import VOCABULARY, targets_of

_build = partial(targets_of, "clm", vocabulary=replace(VOCABULARY, mask_id=None))


def test_each_position_predicts_the_next_token_of_its_segment() -> None:
    targets = _build(
        [[10, 11, 2, 20, 21, 2], [30, 31, 32, 33, 34, 35]],
        [[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 1]],
    )
    assert targets.positions_N.tolist() == [0, 1, 3, 4, 6, 7, 8, 9, 10]
    assert targets.labels_N.tolist() == [11, 2, 21, 2, 31, 32, 33, 34, 35]


def test_padding_is_neither_target_nor_label() -> None:
    """The pad id is the end-of-text id: only the segment tells them apart."""
    targets = _build([[10, 2, 20, 2, 2, 2]], [[1, 1, 2, 2, 0, 0]])
    assert targets.positions_N.tolist() == [0, 2]
    assert targets.labels_N.tolist() == [2, 2]


def test_rows_do_not_run_into_each_other() -> None:
    """The last position of a row and the first of the next carry the same segment id, and are not neighbours."""
    targets = _build([[10, 11], [20, 21]], [[1, 1], [1, 1]])
    assert targets.positions_N.tolist() == [0, 2]
    assert targets.labels_N.tolist() == [11, 21]


def test_a_segment_of_one_token_asks_nothing() -> None:
    assert _build([[10, 11, 12]], [[1, 2, 3]]).positions_N.tolist() == []


def test_inputs_are_the_tokens() -> None:
    targets = _build([[10, 11, 12]], [[1, 1, 1]])
    assert targets.input_ids_BS.tolist() == [[10, 11, 12]]
