import itertools

import numpy as np
import pytest
from transformers import PretrainedConfig

from tests.support.hf_encoders import CLS, EOS, SPECIALS, UNK, plain_tokenizer, template_tokenizer
from tests.support.subword_tokenizers import KINDS, SENTENCES, subword_tokenizer
from toolkit.core.errors import UserError
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.settings import Initialization
from toolkit.finetuning.tc.word_inputs import answering_tokens, paper_word_inputs, split_windows, word_inputs

W = len(SPECIALS)
by_kind = pytest.mark.parametrize("kind", KINDS)
WORDS = [sentence.split() for sentence in SENTENCES]


def source_of(tokenizer, *, max_length=1000):
    accepted = frozenset({"input_ids", "attention_mask"})
    return EncoderSource("model", PretrainedConfig(), tokenizer, max_length, accepted, Initialization.PRETRAINED)


@by_kind
def test_ids_are_those_of_the_words_joined_by_blanks(kind):
    tokenizer = subword_tokenizer(kind)
    rows = word_inputs(WORDS, source_of(tokenizer))
    assert [row["input_ids"] for row in rows] == tokenizer(list(SENTENCES)).input_ids
    assert [row["attention_mask"] for row in rows] == [[1] * len(row["input_ids"]) for row in rows]
    assert any(len(row["input_ids"]) > len(words) + 2 for row, words in zip(rows, WORDS, strict=True))
    if kind == "byte-level BPE":
        # The usual way loses the blank in front of every word but the first.
        assert tokenizer(WORDS, is_split_into_words=True).input_ids != [row["input_ids"] for row in rows]
        tokens = tokenizer.convert_ids_to_tokens(rows[0]["input_ids"])
        assert (tokens[0][0], sum(token.startswith("Ġ") for token in tokens)) == ("T", len(WORDS[0]) - 1)


@by_kind
def test_each_word_is_answered_once_at_its_first_token(kind):
    tokenizer = subword_tokenizer(kind)
    for words, row in zip(WORDS, word_inputs(WORDS, source_of(tokenizer)), strict=True):
        answered = [(word, place) for place, word in enumerate(row["words"]) if word >= 0]
        assert [word for word, _ in answered] == list(range(len(words)))
        places = [place for _, place in answered]
        ends = [*places[1:], len(row["input_ids"])]
        for number, (word, (begin, end)) in enumerate(zip(words, zip(places, ends, strict=True), strict=True)):
            parts = [part for part in row["token_words"][begin:end] if part >= 0]
            assert parts == [number] * len(parts)
            text = tokenizer.decode(row["input_ids"][begin:end], skip_special_tokens=True).strip()
            assert text.replace("[CLS]", "").replace("[SEP]", "").replace(" ", "") == (
                word.lower() if kind == "WordPiece" else word
            )


@by_kind
@pytest.mark.parametrize("max_length", [4, 7, 12, 25])
def test_windows_lose_no_word_and_no_token(kind, max_length):
    tokenizer = subword_tokenizer(kind)
    source = source_of(tokenizer, max_length=max_length)
    rows = word_inputs(WORDS, source)
    for number, (sentence, words) in enumerate(zip(SENTENCES, WORDS, strict=True)):
        own = [row for row in rows if row["sentence"] == number]
        answered = [word for row in own for word in row["words"] if word >= 0]
        assert sorted(answered) == list(range(len(words)))
        assert all(len(row["input_ids"]) <= max_length for row in own)
        whole = tokenizer(sentence).input_ids
        text = tokenizer(sentence, add_special_tokens=False).input_ids
        begin = whole.index(text[0])
        end = len(whole) - len(text) - begin
        for row in own:
            ids = row["input_ids"]
            assert ids[:begin] == whole[:begin]
            assert ids[len(ids) - end :] == whole[len(whole) - end :]
            part = ids[begin : len(ids) - end]
            assert part in [text[at : at + len(part)] for at in range(len(text))]


def test_each_token_knows_its_word_by_hand():
    """`re d`, a blank, nine tokens of `unhappiness`, a blank, `w 1`, and the end of the text."""
    (row,) = word_inputs([["red", "unhappiness", "w1"]], source_of(subword_tokenizer("byte-level BPE")))
    assert row["words"] == [0, -1, -1, 1, *[-1] * 9, 2, -1, -1]
    assert row["token_words"] == [*[0] * 2, -1, *[1] * 9, -1, *[2] * 2, -1]


def test_a_sentence_in_windows_by_hand():
    rows = word_inputs([[f"w{number}" for number in range(9)]], source_of(template_tokenizer(), max_length=6))
    assert [row["input_ids"] for row in rows] == [
        [CLS, *range(W + 0, W + 4), EOS],
        [CLS, *range(W + 2, W + 6), EOS],
        [CLS, *range(W + 4, W + 8), EOS],
        [CLS, *range(W + 5, W + 9), EOS],
    ]
    # w6 is one word from the nearer cut in the third window and in the last: of equals, the first one answers.
    assert [row["words"] for row in rows] == [
        [-1, 0, 1, 2, -1, -1],
        [-1, -1, 3, 4, -1, -1],
        [-1, -1, 5, 6, -1, -1],
        [-1, -1, -1, 7, 8, -1],
    ]
    assert [row["token_words"] for row in rows] == [[-1, *range(first, first + 4), -1] for first in (0, 2, 4, 5)]


@pytest.mark.parametrize("capacity", range(1, 12))
@pytest.mark.parametrize("num_tokens", [1, 5, 11, 12, 13, 50])
def test_windows_cover_the_sentence_and_overlap(num_tokens, capacity):
    windows = split_windows(num_tokens, capacity=capacity)
    assert windows[0][0] == 0
    assert windows[-1][1] == num_tokens
    assert {end - begin for begin, end in windows} == {min(num_tokens, capacity)}
    for (begin, end), (following, _) in itertools.pairwise(windows):
        assert begin < following <= end - capacity // 2


def test_a_word_is_answered_where_it_sees_most():
    # Ten words of one token each but word 4, which has three: 4 5 6.
    word_of = np.array([0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9])
    answers = answering_tokens(word_of, [(0, 6), (3, 9), (6, 12)])
    # Word 4 ends behind the first window; in the second it has one token on its left and two on its right.
    assert [tokens.tolist() for tokens in answers] == [[0, 1, 2, 3], [4, 7], [8, 9, 10, 11]]


def test_a_word_longer_than_a_window_is_answered_at_its_first_token():
    answers = answering_tokens(np.array([0, 1, 1, 1, 1, 1]), [(0, 3), (1, 4), (3, 6)])
    assert [tokens.tolist() for tokens in answers] == [[0], [1], []]


def test_words_without_tokens_are_answered_nowhere():
    tokenizer = subword_tokenizer("WordPiece")
    words = ["\u200b", "The", "\u200b\u200b", "miller", "\ufeff"]
    (row,) = word_inputs([words, ["\u200b"]], source_of(tokenizer))
    assert [word for word in row["words"] if word >= 0] == [1, 3]
    assert row["sentence"] == 0
    assert word_inputs([["\u200b"], []], source_of(plain_tokenizer())) != []


def test_a_blank_that_is_a_token_belongs_to_the_word_behind_it():
    tokenizer = subword_tokenizer("byte-level BPE")
    (row,) = word_inputs([["a", "\u00e9", "b"]], source_of(tokenizer))
    assert tokenizer.convert_ids_to_tokens(row["input_ids"]) == ["a", "Ġ", "Ã", "©", "Ġ", "b", "<eos>"]
    assert row["words"] == [0, -1, 1, -1, -1, 2, -1]
    assert row["blanks"] == [-1, 1, -1, -1, 2, -1, -1]
    windows = word_inputs([["a", "\u00e9", "b"]], source_of(tokenizer, max_length=5))
    assert [(row["words"], row["blanks"]) for row in windows] == [
        ([0, -1, 1, -1, -1], [-1, 1, -1, -1, -1]),
        ([-1, -1, -1, 2, -1], [-1, -1, 2, -1, -1]),
    ]
    (row,) = paper_word_inputs([["a", "\u00e9", "b"]], source_of(tokenizer))
    assert row["words"] == [0, 1, 1, 1, 2, 2, -1]
    assert set(row["blanks"]) == {-1}


def test_words_that_hold_blanks_and_special_tokens():
    (row,) = word_inputs([["w1 w2", "<eos>", "\xa0", "w3"]], source_of(template_tokenizer()))
    assert row["input_ids"] == [CLS, W + 1, W + 2, EOS, W + 3, EOS]
    assert row["words"] == [-1, 0, -1, 1, 3, -1]


def test_paper_inputs_answer_at_every_token():
    tokenizer = subword_tokenizer("byte-level BPE")
    rows = paper_word_inputs(WORDS, source_of(tokenizer))
    for sentence, words, row in zip(SENTENCES, WORDS, rows, strict=True):
        assert row["input_ids"] == tokenizer(sentence + "<eos>", add_special_tokens=False).input_ids
        assert row["words"][-1] == -1
        assert row["input_ids"][-1] == 2
        for number, word in enumerate(words):
            ids = [token for token, of in zip(row["input_ids"], row["words"], strict=True) if of == number]
            assert tokenizer.decode(ids).strip() == word


def test_paper_inputs_are_cut_at_99_percent():
    source = source_of(plain_tokenizer(), max_length=100)
    (row,) = paper_word_inputs([["w1"] * 120], source)
    assert (len(row["input_ids"]), row["words"]) == (99, list(range(99)))


def test_no_room_for_text():
    with pytest.raises(UserError, match=r"max_length = 2 leaves no room .* 2 special tokens .* at least 3\."):
        word_inputs([["w1"]], source_of(template_tokenizer(), max_length=2))
    (row,) = word_inputs([["w1", "nothing"]], source_of(template_tokenizer(), max_length=3))[:1]
    assert row["input_ids"] == [CLS, W + 1, EOS]
    assert UNK not in row["input_ids"]


def test_a_tokenizer_that_does_not_tell_places():
    class Slow:
        is_fast = False

    with pytest.raises(UserError, match=r"the tokenizer of model \(Slow\) does not tell .* tokenizer\.json"):
        word_inputs([["w1"]], source_of(Slow()))
