"""Span masking: how much is hidden, in what lengths, and where spans are cut."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.objectives import BERT, full_rows, targets_of

_build = partial(targets_of, "span")
# Of SpanBERT: geometric with p = 0.2, none longer than 10.
_LENGTHS = 0.8 ** np.arange(10) / (0.8 ** np.arange(10)).sum()
_MEAN = float(_LENGTHS @ np.arange(1, 11))


def _hidden(num_rows: int, num_columns: int, **settings: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each token of full rows is a target."""
    tokens_BS = np.full((num_rows, num_columns), 10, dtype=np.int32)
    targets = _build(tokens_BS, np.ones_like(tokens_BS), **settings)
    hidden_T = np.zeros(tokens_BS.size, dtype=bool)
    hidden_T[targets.positions_N] = True
    return hidden_T.reshape(num_rows, num_columns)


@pytest.mark.parametrize("ratio", [0.05, 0.15, 0.4, 0.9])
def test_the_share_of_hidden_tokens_is_the_ratio_at_the_ends_of_a_row_as_in_its_middle(ratio: float) -> None:
    """Tolerances of five standard deviations; tokens of a row hang together, rows do not."""
    hidden_BS = _hidden(4000, 256, mask_ratio=ratio)
    shares_B = hidden_BS.mean(axis=1)
    assert shares_B.mean() == pytest.approx(ratio, abs=5 * shares_B.std() / 4000**0.5)
    for columns in (slice(0, 4), slice(4, 12), slice(252, 256)):
        shares_B = hidden_BS[:, columns].mean(axis=1)
        assert shares_B.mean() == pytest.approx(ratio, abs=5 * shares_B.std() / 4000**0.5)


def test_special_tokens_and_short_segments_leave_the_share_of_the_others_alone() -> None:
    random = np.random.default_rng(1)
    tokens_BS = random.integers(5, 1000, (2000, 128)).astype(np.int32)
    tokens_BS[random.random(tokens_BS.shape) < 0.2] = 3
    segments_BS = np.cumsum(random.random(tokens_BS.shape) < 0.25, axis=1) + 1
    segments_BS[:, 100:] = 0
    targets = _build(tokens_BS, segments_BS, mask_ratio=0.3)
    is_ordinary_BS = (tokens_BS != 3) & (segments_BS != 0)
    assert is_ordinary_BS.reshape(-1)[targets.positions_N].all()
    assert targets.positions_N.size / is_ordinary_BS.sum() == pytest.approx(0.3, abs=0.006)


def test_spans_have_the_lengths_of_spanbert() -> None:
    """At a ratio of 1 % nearly every run of hidden tokens is one span: the next begins right behind it in 0.3 %."""
    edges_BS = np.diff(_hidden(2000, 1000, mask_ratio=0.01).astype(np.int8), axis=1, prepend=0, append=0)
    lengths = np.nonzero(edges_BS == -1)[1] - np.nonzero(edges_BS == 1)[1]
    assert len(lengths) > 4500
    assert lengths.mean() == pytest.approx(_MEAN, abs=0.2)
    assert pytest.approx(3.8, abs=0.01) == _MEAN
    found = np.bincount(np.minimum(lengths, 11), minlength=12)[1:11] / len(lengths)
    np.testing.assert_allclose(found, _LENGTHS, atol=0.03)
    assert (lengths > 10).mean() < 0.02


def test_a_span_ends_and_the_next_begins_as_often_as_the_settings_say() -> None:
    """Of two neighbours the second is hidden too, unless a span ends between them and a gap follows."""
    for settings, mean in (({}, _MEAN), ({"max_length": 2, "geometric_p": 0.5}, 4 / 3), ({"geometric_p": 1.0}, 1.0)):
        hidden_BS = _hidden(1000, 512, mask_ratio=0.4, **settings)
        gap = mean * 0.6 / 0.4
        expected = 1 - gap / (1 + gap) / mean
        assert hidden_BS[:, 1:][hidden_BS[:, :-1]].mean() == pytest.approx(expected, abs=0.01)


def test_everything_is_hidden_at_a_ratio_of_one() -> None:
    tokens_BS = np.array([[1, 10, 11, 3, 12, 2, 4, 2, 2]], dtype=np.int32)
    segments_BS = np.array([[1, 1, 1, 1, 1, 1, 1, 0, 0]], dtype=np.int32)
    targets = _build(tokens_BS, segments_BS, mask_ratio=1.0)
    assert targets.input_ids_BS.tolist() == [[1, 4, 4, 3, 4, 2, 4, 2, 2]]
    assert (targets.positions_N.tolist(), targets.labels_N.tolist()) == ([1, 2, 4], [10, 11, 12])


def test_a_span_is_treated_alike_in_the_shares_that_were_asked_for() -> None:
    tokens_BS, segments_BS = full_rows(500, 512)
    targets = _build(tokens_BS, segments_BS, mask_ratio=0.15, **BERT)
    shown_N = targets.input_ids_BS.reshape(-1)[targets.positions_N]
    is_mask_N, is_kept_N = shown_N == 4, shown_N == targets.labels_N
    assert is_mask_N.mean() == pytest.approx(0.8, abs=0.02)
    assert is_kept_N.mean() == pytest.approx(0.1, abs=0.015)
    # A hidden neighbour is of the same span in nine of ten cases at this ratio.
    are_neighbours = np.diff(targets.positions_N) == 1
    assert is_kept_N[1:][are_neighbours & is_kept_N[:-1]].mean() > 0.85
    assert not is_mask_N[1:][are_neighbours & is_kept_N[:-1]].mean() > 0.12
    plain = _build(tokens_BS, segments_BS, mask_ratio=0.15)
    np.testing.assert_array_equal(plain.positions_N, targets.positions_N)


def test_a_segment_has_at_least_as_many_targets_as_asked_for() -> None:
    tokens_BS, _ = full_rows(64, 512)
    segments_BS = np.tile(np.arange(512) // 8 + 1, (64, 1))
    few = _build(tokens_BS, segments_BS, mask_ratio=0.05)
    targets = _build(tokens_BS, segments_BS, mask_ratio=0.05, min_targets=2)
    assert np.bincount(few.positions_N // 8, minlength=4096).min() == 0
    counts = np.bincount(targets.positions_N // 8, minlength=4096)
    assert counts.min() == 2
    assert np.isin(few.positions_N, targets.positions_N).all()
    # Wherever a segment has its fewest, any place in it is as likely.
    places = np.bincount(targets.positions_N % 8, minlength=8) / targets.positions_N.size
    np.testing.assert_allclose(places, 1 / 8, atol=0.02)


def test_rows_that_run_out_of_spans_early_are_filled() -> None:
    """Rows take as many spans as they need, and the spans of a row do not depend on what others need."""
    together = _hidden(3000, 64, mask_ratio=0.9, geometric_p=0.9)
    first = _hidden(1, 64, mask_ratio=0.9, geometric_p=0.9)
    np.testing.assert_array_equal(first[0], together[0])
    assert together[:, -1].mean() == pytest.approx(0.9, abs=0.03)
