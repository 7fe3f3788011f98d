"""MLM by whole words: what is drawn together, and that words stay within their segment."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.support import objectives
from tests.support.objectives import BERT, targets_of
from toolkit.core.errors import SettingsError
from toolkit.objectives import Draws, IntArray, WordBoundaries, build
from toolkit.objectives.base import at_progress

# A word begins with each third ordinary id; one ends behind each eleventh.
_IDS = np.arange(1000)
_IS_SPECIAL = _IDS <= 4
EDGES = WordBoundaries(begins_V=(_IDS % 3 == 0) | _IS_SPECIAL, ends_V=(_IDS % 11 == 0) | _IS_SPECIAL)
VOCABULARY = replace(objectives.VOCABULARY, special_ids=(0, 1, 2, 3), words=lambda: EDGES)
_build = partial(targets_of, "mlm", vocabulary=VOCABULARY, unit="word")


def _rows(num_rows: int = 64, num_columns: int = 512, *, seed: int = 0) -> tuple[IntArray, IntArray]:
    """Segments of about twenty tokens, a special id in 25, and padding behind."""
    random = np.random.default_rng(seed)
    tokens_BS = random.integers(5, 1000, (num_rows, num_columns)).astype(np.int32)
    tokens_BS[random.random(tokens_BS.shape) < 0.04] = 2
    segments_BS = np.cumsum(random.random(tokens_BS.shape) < 0.05, axis=1) + 1
    segments_BS[:, num_columns - 10 :] = 0
    return tokens_BS, segments_BS


def _words(tokens_BS: IntArray, segments_BS: IntArray) -> Iterator[list[int]]:
    """Flat positions of each word of ordinary tokens, one token at a time."""
    word: list[int] = []
    for place, (token, segment) in enumerate(zip(tokens_BS.flat, segments_BS.flat, strict=True)):
        before = place - 1
        goes_on = (
            place % tokens_BS.shape[1] > 0
            and segments_BS.flat[before] == segment
            and token % 3 != 0
            and tokens_BS.flat[before] % 11 != 0
            and min(token, tokens_BS.flat[before]) > 4
        )
        if not goes_on and word:
            yield word
        if not goes_on:
            word = []
        if token > 4 and segment != 0:
            word = [*word, place]
    if word:
        yield word


def test_a_word_is_hidden_whole_where_the_draw_of_its_first_token_is_below_the_ratio() -> None:
    tokens_BS, segments_BS = _rows()
    draws_T = Draws(0, np.arange(64), num_columns=512).uniform_BS("mlm.choice").reshape(-1)
    expected = [place for word in _words(tokens_BS, segments_BS) if draws_T[word[0]] < 0.3 for place in word]
    targets = _build(tokens_BS, segments_BS, mask_ratio=0.3)
    assert targets.positions_N.tolist() == expected
    assert (targets.input_ids_BS.reshape(-1)[targets.positions_N] == 4).all()


@pytest.mark.parametrize("ratio", [0.15, 0.4])
def test_the_share_of_tokens_is_the_ratio(ratio: float) -> None:
    tokens_BS, segments_BS = _rows(256, 1024)
    num_ordinary = ((tokens_BS > 4) & (segments_BS != 0)).sum()
    found = len(_build(tokens_BS, segments_BS, mask_ratio=ratio).positions_N) / num_ordinary
    assert found == pytest.approx(ratio, abs=0.006)


def test_unit_token_has_the_masks_of_a_vocabulary_without_words() -> None:
    tokens_BS, segments_BS = _rows(8)
    draws = Draws(0, np.arange(8), num_columns=512)
    found = build("mlm", BERT, VOCABULARY).build(tokens_BS, segments_BS, draws)
    plain = build("mlm", BERT, replace(VOCABULARY, words=None)).build(tokens_BS, segments_BS, draws)
    np.testing.assert_array_equal(found.positions_N, plain.positions_N)
    np.testing.assert_array_equal(found.input_ids_BS, plain.input_ids_BS)
    assert found.positions_N.tolist() != _build(tokens_BS, segments_BS, **BERT).positions_N.tolist()


def test_each_token_of_a_word_is_treated_for_itself() -> None:
    tokens_BS, segments_BS = _rows(256, 1024)
    shown_T = _build(tokens_BS, segments_BS, mask_ratio=0.4, **BERT).input_ids_BS.reshape(-1)
    hidden = _build(tokens_BS, segments_BS, mask_ratio=0.4)
    is_masked_N = shown_T[hidden.positions_N] == 4
    assert is_masked_N.mean() == pytest.approx(0.8, abs=0.006)
    chosen = set(hidden.positions_N.tolist())
    pairs = [word[:2] for word in _words(tokens_BS, segments_BS) if len(word) > 1 and word[0] in chosen]
    both = np.mean([shown_T[first] == 4 and shown_T[second] == 4 for first, second in pairs])
    assert both == pytest.approx(0.64, abs=0.02)


def test_what_replaces_a_token_does_not_follow_from_its_treatment() -> None:
    """Of a thousand ids each tenth is drawn equally often; the deviation of a count is 30."""
    tokens_BS, segments_BS = _rows(256, 1024)
    targets = _build(tokens_BS, segments_BS, mask_ratio=0.4, **BERT)
    shown_N = targets.input_ids_BS.reshape(-1)[targets.positions_N]
    replaced_N = shown_N[(shown_N != 4) & (shown_N != targets.labels_N)]
    counts = np.histogram(replaced_N, bins=10, range=(5, 1000))[0]
    assert np.abs(counts - len(replaced_N) / 10).max() < 150


@pytest.mark.parametrize("at_least", [1, 4])
def test_a_segment_with_too_few_targets_takes_the_words_with_its_smallest_draws(at_least: int) -> None:
    tokens_BS, segments_BS = _rows(16)
    draws_T = Draws(0, np.arange(16), num_columns=512).uniform_BS("mlm.choice").reshape(-1)
    by_segment: dict[tuple[int, int], list[list[int]]] = {}
    for word in _words(tokens_BS, segments_BS):
        by_segment.setdefault((word[0] // 512, int(segments_BS.flat[word[0]])), []).append(word)
    expected: list[int] = []
    for words in by_segment.values():
        chosen: list[int] = []
        for word in sorted(words, key=lambda one: draws_T[one[0]]):
            if draws_T[word[0]] < 0.1 or len(chosen) < at_least:
                chosen += word
        expected += chosen
    found = _build(tokens_BS, segments_BS, mask_ratio=0.1, min_targets=at_least).positions_N.tolist()
    assert found == sorted(expected)


def test_a_ramp_draws_words_at_its_ratio() -> None:
    tokens_BS, segments_BS = _rows(8)
    draws = Draws(0, np.arange(8), num_columns=512)
    ramp = build("mlm", {"unit": "word", "mask_ratio": {"start": 0.6, "stop": 0.2}}, VOCABULARY)
    found = at_progress(ramp, 0.5).build(tokens_BS, segments_BS, draws).positions_N
    assert found.tolist() == _build(tokens_BS, segments_BS, mask_ratio=0.4).positions_N.tolist()


def test_a_vocabulary_without_words_is_refused() -> None:
    with pytest.raises(SettingsError, match=r'which ids begin a word.*set unit = "token"'):
        build("mlm", {"unit": "word"}, replace(VOCABULARY, words=None))


def test_another_rule_than_the_run_began_with_is_refused() -> None:
    """A later version of the toolkit has another rule, or a run file of a later version comes to this one."""
    later = replace(VOCABULARY, words=lambda: replace(EDGES, rule=2))
    for vocabulary, rule in ((later, 1), (VOCABULARY, 2)):
        with pytest.raises(
            SettingsError, match=rf"word_rule = {rule} is not available: .* finds words by rule {3 - rule}"
        ):
            build("mlm", {"unit": "word", "word_rule": rule}, vocabulary)


def test_words_are_not_asked_for_where_tokens_are_hidden() -> None:
    def read() -> WordBoundaries:
        raise AssertionError("the tokenizer was read")

    build("mlm", {}, replace(VOCABULARY, words=read))
