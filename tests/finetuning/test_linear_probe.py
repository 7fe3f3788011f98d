"""Vectors of words: which tokens they are the mean of, and where the task finds their classes."""

import numpy as np
import pytest

from toolkit.finetuning import Split
from toolkit.finetuning.linear_probe import probe_scores


class _Task:
    """Hands over what a task would decode."""

    def decode(self, data, features, outputs):
        return outputs

    def score(self, data, predictions):
        data.extend(predictions[Split.TEST])
        return {Split.TEST: {"f1": 1.0}}


def _window(values, words, token_words, labels):
    """An input whose hidden states are `values`, of width 1."""
    return {"input_ids": values, "words": words, "token_words": token_words, "labels": labels}


def _hidden_states(features):
    for number in reversed(range(len(features))):
        yield number, np.array(features[number]["input_ids"], np.float32)[:, None]


def test_a_word_is_the_mean_of_its_tokens_and_answers_at_its_first():
    """Word 3 of the test has two tokens, 50 and -50: their mean is near class 0, the first one in class 1."""
    train = [
        _window([99, 0, 0, 99], [-1, 3, -1, -1], [-1, 3, 3, 4], [-100, 0, -100, -100]),
        _window([50, 52, 99, 49], [4, -1, -1, 5], [4, 4, -1, 5], [1, -100, -100, 1]),
    ]
    test = [_window([77, 50, -50, 60], [-1, 3, -1, 4], [-1, 3, 3, 4], [-100, 0, -100, 1])]
    outputs = []
    scores = probe_scores(_Task(), outputs, {Split.TRAIN: train, Split.TEST: test}, _hidden_states, steps=100)
    assert scores == {"f1": 1.0}
    assert outputs[0].tolist() == [[0, 0], [1, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize(("tokens", "expected"), [([1, 0], 0), ([9, 8, 10], 1)])
def test_a_text_is_the_mean_of_all_its_tokens(tokens, expected):
    train = [{"input_ids": [0, 1, 2], "labels": 0}, {"input_ids": [12, 6], "labels": 1}]
    test, outputs = [{"input_ids": tokens, "labels": 0}], []
    probe_scores(_Task(), outputs, {Split.TRAIN: train, Split.TEST: test}, _hidden_states, steps=100)
    assert outputs[0].argmax() == expected
    assert outputs[0].shape == (2,)
