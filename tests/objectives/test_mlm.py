"""MLM: who becomes a target, what stands in its place, and what is refused."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.objectives import BERT, VOCABULARY, full_rows, targets_of
from toolkit.core.errors import SettingsError
from toolkit.objectives import Draws, IntArray, Vocabulary, build
from toolkit.objectives.base import at_progress
from toolkit.objectives.mixture import alone
from toolkit.objectives.ramps import MaskRatioRamp
from toolkit.objectives.schedule import Phase, PhaseRows

_build = partial(targets_of, "mlm")


def test_targets_are_where_the_draw_falls_below_the_ratio() -> None:
    tokens_BS, segments_BS = full_rows(2, 8)
    uniform_BS = Draws(0, np.arange(2), num_columns=8).uniform_BS("mlm.choice")
    targets = _build(tokens_BS, segments_BS, mask_ratio=0.5)
    assert targets.positions_N.tolist() == np.flatnonzero(uniform_BS < 0.5).tolist()
    assert 0 < len(targets.positions_N) < 16


def test_a_target_shows_the_mask_and_asks_for_the_original() -> None:
    tokens_BS, segments_BS = full_rows(4, 32)
    targets = _build(tokens_BS, segments_BS, mask_ratio=0.5)
    expected_T = tokens_BS.reshape(-1).copy()
    assert targets.labels_N.tolist() == expected_T[targets.positions_N].tolist()
    expected_T[targets.positions_N] = 4
    np.testing.assert_array_equal(targets.input_ids_BS.reshape(-1), expected_T)


@pytest.mark.parametrize("ratio", [0.05, 0.4, 0.9])
def test_the_share_of_targets_is_the_ratio(ratio: float) -> None:
    """Each position independently: the count is binomial, not a quota."""
    tokens_BS, segments_BS = full_rows()
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
    tokens_BS, segments_BS = full_rows(256, 1024)
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
    tokens_BS, segments_BS = full_rows(4, 64)
    plain, split = _build(tokens_BS, segments_BS), _build(tokens_BS, segments_BS, **BERT)
    np.testing.assert_array_equal(plain.positions_N, split.positions_N)
    np.testing.assert_array_equal(plain.labels_N, split.labels_N)


def test_random_replacements_cover_the_ordinary_ids_and_nothing_else() -> None:
    tokens_BS, segments_BS = full_rows(64, 1024)
    targets = _build(tokens_BS, segments_BS, mask_ratio=1.0, mask_fraction=0.0, random_fraction=1.0)
    counts_V = np.bincount(targets.input_ids_BS.reshape(-1), minlength=1000)
    assert counts_V[[1, 2, 3, 4]].tolist() == [0, 0, 0, 0]
    assert counts_V[0] > 0
    assert (counts_V[5:] > 0).all()
    assert len(counts_V) == 1000


def test_keep_only_shows_the_tokens_as_they_are() -> None:
    tokens_BS, segments_BS = full_rows(2, 64)
    targets = _build(tokens_BS, segments_BS, mask_fraction=0.0, keep_fraction=1.0)
    np.testing.assert_array_equal(targets.input_ids_BS, tokens_BS)
    assert len(targets.positions_N) > 0


def test_masks_follow_the_seed_and_the_sample() -> None:
    tokens_BS, segments_BS = full_rows(2, 256)
    base = _build(tokens_BS, segments_BS)
    assert base.positions_N.tolist() != _build(tokens_BS, segments_BS, seed=1).positions_N.tolist()
    moved = _build(tokens_BS[1:], segments_BS[1:], first=1)
    np.testing.assert_array_equal(moved.input_ids_BS[0], base.input_ids_BS[1])


def test_it_hides_forty_percent_by_default() -> None:
    assert len(_build(*full_rows(256, 1024)).positions_N) / (256 * 1024) == pytest.approx(0.4, abs=0.005)


def test_a_vocabulary_without_a_mask_token_is_refused_where_it_is_needed() -> None:
    without = Vocabulary(size=1000, mask_id=None, pad_id=2, bos_id=1, eos_id=2, special_ids=(1, 2))
    with pytest.raises(SettingsError, match="--mask-token"):
        build("mlm", {}, without)
    tokens_BS, segments_BS = full_rows(1, 64)
    objective = build("mlm", {"mask_ratio": 1.0, "mask_fraction": 0, "random_fraction": 1}, without)
    targets = objective.build(tokens_BS, segments_BS, Draws(0, np.arange(1), num_columns=64))
    assert len(targets.positions_N) == 64
    assert targets.input_ids_BS.min() >= 0


# Nine steps: progress 0, 1/8, ..., 1.
_RAMPS = [
    ({"shape": "linear"}, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
    ({"shape": "cosine"}, [0.1, 0.130448, 0.217157, 0.346927, 0.5, 0.653073, 0.782843, 0.869552, 0.9]),
    ({"shape": "steps", "steps": 3}, [0.1, 0.1, 0.1, 0.5, 0.5, 0.5, 0.9, 0.9, 0.9]),
    ({"shape": "steps", "steps": 2}, [0.1, 0.1, 0.1, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9]),
]


@pytest.mark.parametrize(("given", "ratios"), _RAMPS, ids=str)
def test_every_ramp_against_a_table(given: dict[str, Any], ratios: list[float]) -> None:
    ramp, phase = MaskRatioRamp(start=0.1, stop=0.9, **given), Phase(1, alone("mlm"), 20, 29, PhaseRows(1))
    found = [ramp.at(phase.progress_at(step)) for step in range(20, 29)]
    assert found == pytest.approx(ratios, abs=1e-6)
    assert (found[0], found[-1], ramp.mean) == (0.1, 0.9, 0.5)


@pytest.mark.parametrize("stairs", [2, 3, 4, 5, 8])
def test_stairs_are_equally_long_where_they_divide_the_phase(stairs: int) -> None:
    ramp = MaskRatioRamp(start=0.8, stop=0.2, shape="steps", steps=stairs)
    phase = Phase(0, alone("mlm"), 0, stairs * 7, PhaseRows(1))
    _, lengths = np.unique([ramp.at(phase.progress_at(step)) for step in range(stairs * 7)], return_counts=True)
    assert lengths.tolist() == [7] * stairs


def test_a_phase_of_one_step_is_at_the_end_of_its_ramp() -> None:
    assert Phase(0, alone("mlm"), 4, 5, PhaseRows(1)).progress_at(4) == 1.0


def test_a_ramp_gives_the_targets_of_its_ratio_and_evaluation_those_of_its_end() -> None:
    tokens_BS, segments_BS = full_rows(4, 64)
    draws = Draws(0, np.arange(4), num_columns=64)
    ramp = build("mlm", {"mask_ratio": {"start": 0.6, "stop": 0.2}, **BERT}, VOCABULARY)
    for progress, ratio in ((1.0, 0.2), (0.5, 0.4), (0.0, 0.6)):
        there, plain = at_progress(ramp, progress), _build(tokens_BS, segments_BS, mask_ratio=ratio, **BERT)
        found = there.build(tokens_BS, segments_BS, draws)
        assert found.positions_N.tolist() == plain.positions_N.tolist()
        np.testing.assert_array_equal(found.input_ids_BS, plain.input_ids_BS)
    evaluated = ramp.build(tokens_BS, segments_BS, draws)
    assert evaluated.positions_N.tolist() == _build(tokens_BS, segments_BS, mask_ratio=0.2).positions_N.tolist()


def test_a_plain_ratio_does_not_change_in_the_course_of_a_phase() -> None:
    objective = build("mlm", {}, VOCABULARY)
    assert at_progress(objective, 0.3) is objective
    clm = build("clm", {}, VOCABULARY)
    assert at_progress(clm, 0.3) is clm


@pytest.mark.parametrize(
    ("ratio", "found"),
    [
        ({"start": 0.0, "stop": 0.2}, r"objectives\.mlm\.mask_ratio\.start: expected a value above 0, got 0\.0"),
        ({"start": 0.3}, r"objectives\.mlm\.mask_ratio\.stop is missing"),
        ({"start": 0.3, "stop": 0.2, "shap": "linear"}, r"unknown key 'objectives\.mlm\.mask_ratio\.shap'\. Did you"),
        ({"start": 0.3, "stop": 0.2, "shape": "steps"}, r"needs a number of stairs\. Set steps"),
        ({"start": 0.3, "stop": 0.2, "steps": 4}, r'steps = 4 is of shape "steps", and shape = "linear"'),
        ({"start": 0.3, "stop": 0.2, "shape": "stairs"}, r"mask_ratio\.shape: expected 'linear', 'cosine' or 'steps'"),
    ],
)
def test_a_wrong_ramp_is_refused(ratio: object, found: str) -> None:
    with pytest.raises(SettingsError, match=found) as caught:
        build("mlm", {"mask_ratio": ratio}, VOCABULARY)
    assert len(str(caught.value).splitlines()) == 1


def _fewest(tokens_BS: IntArray, segments_BS: IntArray, *, ratio: float, at_least: int) -> list[int]:
    """Targets one segment at a time, in plain Python."""
    draws_BS = Draws(0, np.arange(len(tokens_BS)), num_columns=tokens_BS.shape[1]).uniform_BS("mlm.choice")
    found: list[int] = []
    for row in range(len(tokens_BS)):
        for segment in set(segments_BS[row].tolist()) - {0}:
            columns = np.flatnonzero((segments_BS[row] == segment) & ~np.isin(tokens_BS[row], (1, 2, 3, 4)))
            ordered = sorted(columns.tolist(), key=lambda column: draws_BS[row, column])
            drawn = [column for column in ordered if draws_BS[row, column] < ratio]
            chosen = drawn if len(drawn) >= at_least else ordered[:at_least]
            found += [row * tokens_BS.shape[1] + column for column in chosen]
    return sorted(found)


@pytest.mark.parametrize("at_least", [1, 3, 100])
def test_a_segment_with_too_few_targets_takes_its_smallest_draws(at_least: int) -> None:
    random = np.random.default_rng(1)
    tokens_BS, _ = full_rows(16, 64)
    tokens_BS[random.random(tokens_BS.shape) < 0.2] = 2
    segments_BS = np.cumsum(random.random((16, 64)) < 0.15, axis=1) + 1
    segments_BS[:, 50:] = 0
    tokens_BS[segments_BS == 2] = 3
    found = _build(tokens_BS, segments_BS, mask_ratio=0.15, min_targets=at_least).positions_N.tolist()
    assert found == _fewest(tokens_BS, segments_BS, ratio=0.15, at_least=at_least)
    assert len(found) > len(_build(tokens_BS, segments_BS, mask_ratio=0.15).positions_N)


def test_added_targets_are_masked_replaced_and_kept_like_the_others() -> None:
    """Segments of two tokens at a ratio of 1 %: nearly every target is an added one."""
    tokens_BS, _ = full_rows(64, 1024)
    segments_BS = np.tile(np.arange(1024) // 2 + 1, (64, 1))
    targets = _build(tokens_BS, segments_BS, mask_ratio=0.01, min_targets=1, **BERT)
    num_targets = len(targets.positions_N)
    assert 64 * 512 <= num_targets < 64 * 512 * 1.01
    shown_N = targets.input_ids_BS.reshape(-1)[targets.positions_N]
    assert abs((shown_N == 4).sum() / num_targets - 0.8) < 0.012
    assert abs((shown_N == targets.labels_N).sum() / num_targets - 0.1) < 0.01
