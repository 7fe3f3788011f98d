"""Inputs from sentences of words: the ids of the words joined by blanks, and which word each token answers for.

A sentence is tokenized as one text, so that a word keeps the blank before it, as in pretraining, and the first word has
none. A sentence that is too long becomes windows that overlap by half; each word is answered in the one where it has
the most context.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import BatchEncoding

from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.inputs import check_room, check_tells_offsets, input_row, paper_length

NO_WORD = -1
TokenRange = tuple[int, int]
"""First token and the one after the last, among the tokens of a sentence."""
WordInputs = list[dict[str, Any]]
"""`sentence` (its number), the encoder's inputs, and for each token a word number or `NO_WORD`: `words`, the word that
it answers for; `blanks`, the answered word if it is just the blank before that; `token_words`, the word that it is part
of."""


def word_inputs(sentences: Sequence[Sequence[str]], source: EncoderSource) -> WordInputs:
    """Encode sentences as the tokenizer does; a word is answered at its first token that is more than a blank.

    Words without tokens are answered nowhere; sentences with only such words have no inputs.
    """
    encoded = _encode(sentences, "", source, add_special_tokens=True)
    inputs: WordInputs = []
    for number, words in enumerate(sentences):
        is_text = np.array([part is not None for part in encoded.sequence_ids(number)])
        if not is_text.any():
            continue
        begin, end = int(is_text.argmax()), len(is_text) - int(is_text[::-1].argmax())
        num_special = len(is_text) - (end - begin)
        check_room(source.max_length, num_special)
        offsets = encoded["offset_mapping"][number][begin:end]
        word_of = _words_of(offsets, words)
        is_blank = _are_blanks(offsets, word_of, words)
        columns = input_row(encoded, number, source)
        windows = split_windows(end - begin, capacity=source.max_length - num_special)
        part_of = np.where(is_blank, NO_WORD, word_of)
        answers = answering_tokens(part_of, windows)
        for (first, after), tokens in zip(windows, answers, strict=True):
            if not len(tokens):
                continue
            answered, blanks, parts = np.full((3, after - first + num_special), NO_WORD)
            answered[begin + tokens - first] = word_of[tokens]
            in_front = first + np.flatnonzero((is_blank & np.isin(word_of, word_of[tokens]))[first:after])
            blanks[begin + in_front - first] = word_of[in_front]
            parts[begin : begin + after - first] = part_of[first:after]
            row = {
                name: [*values[:begin], *values[begin + first : begin + after], *values[end:]]
                for name, values in columns.items()
            }
            told = {"words": answered.tolist(), "blanks": blanks.tolist(), "token_words": parts.tolist()}
            inputs.append({"sentence": number, **row, **told})
    return inputs


def paper_word_inputs(sentences: Sequence[Sequence[str]], source: EncoderSource) -> WordInputs:
    """Encode sentences as the paper's authors do; a word is answered at each of its tokens.

    The end-of-text token is appended as a string, and nothing is prepended. Tokens beyond 99 % of the model's limit are
    cut off: their words are answered nowhere.
    """
    longest = paper_length(source)
    encoded = _encode(sentences, source.tokenizer.eos_token or "", source, add_special_tokens=False)
    inputs: WordInputs = []
    for number, words in enumerate(sentences):
        answered = _words_of(encoded["offset_mapping"][number][:longest], words)
        if (answered != NO_WORD).any():
            row = input_row(encoded, number, source, longest=longest)
            told = {"words": answered.tolist(), "blanks": [NO_WORD] * len(answered), "token_words": answered.tolist()}
            inputs.append({"sentence": number, **row, **told})
    return inputs


def split_windows(num_tokens: int, *, capacity: int) -> list[TokenRange]:
    """Windows of `capacity` tokens over a sentence, overlapping by half; a single one if it fits."""
    if num_tokens <= capacity:
        return [(0, num_tokens)]
    step = capacity - capacity // 2
    firsts = [*range(0, num_tokens - capacity, step), num_tokens - capacity]
    return [(first, first + capacity) for first in firsts]


def answering_tokens(word_of: npt.NDArray[np.int64], windows: Sequence[TokenRange]) -> list[npt.NDArray[np.int64]]:
    """First tokens of the words that each window answers: those with the most context there.

    A word's context is its distance to the nearer end at which the window cuts the sentence off. `word_of`, the word of
    each token, is ascending except for `NO_WORD`.
    """
    places = np.flatnonzero(word_of != NO_WORD)
    _, index = np.unique(word_of[places], return_index=True)
    firsts, lasts = places[index], places[np.append(index[1:], len(places)) - 1]
    seen = np.empty((len(windows), len(firsts)))
    for row, (begin, end) in enumerate(windows):
        left = np.full(len(firsts), np.inf) if begin == 0 else firsts - begin
        right = np.full(len(firsts), np.inf) if end == len(word_of) else end - 1 - lasts
        seen[row] = np.where((firsts < begin) | (firsts >= end), -np.inf, np.minimum(left, right))
    best = seen.argmax(axis=0)
    return [firsts[best == row] for row in range(len(windows))]


def _encode(
    sentences: Sequence[Sequence[str]], end: str, source: EncoderSource, *, add_special_tokens: bool
) -> BatchEncoding:
    tokenizer = source.tokenizer
    check_tells_offsets(source)
    texts = [" ".join(words) + end for words in sentences]
    encoded: BatchEncoding = tokenizer(
        texts, add_special_tokens=add_special_tokens, return_offsets_mapping=True, verbose=False
    )
    return encoded


def _words_of(offsets: Sequence[tuple[int, int]], words: Sequence[str]) -> npt.NDArray[np.int64]:
    """The word of each token, by its character offsets; a blank belongs to the word after it."""
    starts, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    word_ends = np.cumsum([len(word) + 1 for word in words]) - 1
    word_of = np.searchsorted(word_ends, starts, side="right")
    return np.where((starts == ends) | (word_of == len(words)), NO_WORD, word_of)


def _are_blanks(
    offsets: Sequence[tuple[int, int]], word_of: npt.NDArray[np.int64], words: Sequence[str]
) -> npt.NDArray[np.bool_]:
    word_starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    ends = np.array(offsets, np.int64).reshape(-1, 2)[:, 1]
    is_blank: npt.NDArray[np.bool_] = np.logical_and(word_of != NO_WORD, ends <= word_starts[word_of])
    return is_blank
