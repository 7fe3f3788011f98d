import collections
import random
import re
import string

import numpy as np
import pytest

from toolkit.finetuning.qa.squad_metrics import best_threshold, exact_match, f1, normalize, position_f1


class Official:
    """What evaluate-v2.0.py computes, step by step as it does."""

    @staticmethod
    def normalize(text):
        text = text.lower()
        text = "".join(letter for letter in text if letter not in set(string.punctuation))
        text = re.sub(r"\b(a|an|the)\b", " ", text)
        return " ".join(text.split())

    @classmethod
    def tokens(cls, text):
        return cls.normalize(text).split() if text else []

    @classmethod
    def best(cls, prediction, answers, metric):
        answers = [answer for answer in answers if cls.normalize(answer)] or [""]
        return max(metric(answer, prediction) for answer in answers)

    @classmethod
    def exact(cls, answer, prediction):
        return int(cls.normalize(answer) == cls.normalize(prediction))

    @classmethod
    def f1(cls, answer, prediction):
        gold, predicted = cls.tokens(answer), cls.tokens(prediction)
        same = sum((collections.Counter(gold) & collections.Counter(predicted)).values())
        if len(gold) == 0 or len(predicted) == 0:
            return int(gold == predicted)
        if same == 0:
            return 0
        precision, recall = 1.0 * same / len(predicted), 1.0 * same / len(gold)
        return (2 * precision * recall) / (precision + recall)

    @staticmethod
    def threshold(scores, null_scores, predictions, has_answer):
        current = sum(not has for has in has_answer)
        best_score, best = current, 0.0
        for number in sorted(range(len(null_scores)), key=null_scores.__getitem__):
            current += scores[number] if has_answer[number] else (-1 if predictions[number] else 0)
            if current > best_score:
                best_score, best = current, null_scores[number]
        return best_score / len(scores), best


WORDS = [
    "the", "a", "An", "Beyoncé", "U.S.", "$5", "year-old", "1843", "Ada", "ada", "—", "İstanbul", "...",
    "the\u00a0cat",
]  # fmt: skip


def answers_at_random(draw):
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 4))) for _ in range(draw.randint(0, 4))]


def test_both_metrics_equal_the_official_script_exactly():
    draw = random.Random(0)
    ones = 0
    for _ in range(3000):
        answers, prediction = answers_at_random(draw), " ".join(draw.choices(WORDS, k=draw.randint(0, 4)))
        assert normalize(prediction) == Official.normalize(prediction)
        assert exact_match(prediction, answers) == Official.best(prediction, answers, Official.exact)
        assert f1(prediction, answers) == Official.best(prediction, answers, Official.f1)
        ones += exact_match(prediction, answers) == 1
    assert 100 < ones < 2900, "the cases are neither all hits nor all misses"


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "overlap"),
    [
        ("The Cat!", ["cat"], 1, 1),
        ("black cat", ["a cat", "black dog", "black black"], 0, 2 * (1 / 2) * 1 / (1 / 2 + 1)),
        ("cat cat", ["cat"], 0, 2 * (1 / 2) * 1 / (1 / 2 + 1)),
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", ["the", "cat"], 0, 0),
    ],
)
def test_metrics_by_hand(prediction, answers, exact, overlap):
    assert exact_match(prediction, answers) == exact
    assert f1(prediction, answers) == overlap


def test_the_threshold_is_the_official_scripts():
    draw = random.Random(1)
    for _ in range(200):
        size = draw.randint(1, 12)
        differences = draw.sample(range(100), size)
        has_answer = [draw.random() < 0.6 for _ in range(size)]
        scores = [draw.choice([0, 0.5, 1.0]) if has else 0.0 for has in has_answer]
        if_null = [float(not has) for has in has_answer]
        expected, threshold = Official.threshold(scores, differences, ["x"] * size, has_answer)
        found = best_threshold(np.array(differences, float), scores, if_null)
        chosen = [
            null if difference > found else score
            for difference, score, null in zip(differences, scores, if_null, strict=True)
        ]
        assert np.mean(chosen) == pytest.approx(expected, abs=1e-12)
        if threshold:
            assert found == threshold


def test_equal_differences_share_their_fate():
    # Parted at 1.0, the first alone would give 2 of 2; together they give 1 of 2, as below all does.
    assert best_threshold(np.array([1.0, 1.0]), [1.0, 0.0], [0.0, 1.0]) < 1.0
    assert best_threshold(np.array([1.0, 1.0, 3.0]), [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]) == 1.0


def test_positions_by_hand():
    assert position_f1([4, 5], [5, 6, 7]) == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert position_f1([], []) == 1
    assert position_f1([], [5]) == 0
    assert position_f1([5], []) == 0
    assert position_f1([0], []) == 1, "the paper's authors let position 0 stand for no answer"
