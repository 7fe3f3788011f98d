import random

import pytest
from seqeval.metrics import f1_score, precision_score, recall_score
from sklearn import metrics

from toolkit.finetuning.tc.tag_schemes import entity_scores, sentence_macro_f1


def tags_at_random(draw, length):
    return [draw.choice(["O", "O", "B-A", "I-A", "B-B", "I-B"]) for _ in range(length)]


def test_entity_scores_are_seqevals():
    draw = random.Random(0)
    truth = [tags_at_random(draw, length % 13 + 1) for length in range(200)]
    predictions = [[tag if draw.random() < 0.7 else "O" for tag in tags] for tags in truth]
    assert entity_scores(truth, predictions) == {
        "precision": precision_score(truth, predictions),
        "recall": recall_score(truth, predictions),
        "f1": f1_score(truth, predictions),
    }
    assert 0.2 < f1_score(truth, predictions) < 0.9


@pytest.mark.parametrize(
    ("truth", "predictions", "expected"),
    [
        # Two entities, one of them found whole, and one that is not there.
        ("B-A I-A O B-B O", "B-A I-A O O B-B", (1 / 2, 1 / 2, 1 / 2)),
        # A wrong end and a wrong type are both wrong.
        ("B-A I-A O B-B", "B-A O O B-A", (0, 0, 0)),
        # Three of four that are predicted, three of three that are there.
        ("B-A B-A O B-B", "B-A B-A B-B B-B", (3 / 4, 1, 6 / 7)),
        ("S-A O B-B E-B", "S-A O B-B E-B", (1, 1, 1)),
        ("U-A U-A O O", "U-A O O O", (1, 1 / 2, 2 / 3)),
        ("B-A I-A I-A", "B-A I-A I-A", (1, 1, 1)),
        ("O O", "O O", (0, 0, 0)),
        ("I-A I-A B-A", "I-A I-A I-A", (0, 0, 0)),
    ],
)
def test_entity_scores_by_hand(truth, predictions, expected):
    scores = entity_scores([truth.split()], [predictions.split()])
    assert tuple(scores.values()) == pytest.approx(expected, abs=1e-15)


def test_entities_end_with_their_sentence():
    assert entity_scores([["B-A"], ["I-A"]], [["B-A"], ["O"]])["recall"] == 0.5


@pytest.mark.parametrize(
    ("truth", "predictions", "expected"),
    [
        # O: precision 2/3, recall 1, F1 4/5; tag 1: 0.
        ([[0, 0, 1]], [[0, 0, 0]], (4 / 5 + 0) / 2),
        # O is right; tag 1 is right; tag 2, which only the prediction has, counts as 0.
        ([[0, 1, 1]], [[0, 1, 2]], (1 + 2 / 3 + 0) / 3),
        # Averaged over sentences, not over words.
        ([[0, 0, 0, 0, 0, 0], [1]], [[0, 0, 0, 0, 0, 0], [0]], (1 + 0) / 2),
        # A word without an answer is left out, and so is a sentence of such words.
        ([[0, 1], [1]], [[0, None], [None]], 1.0),
        ([[1]], [[None]], 0.0),
    ],
)
def test_the_papers_score_by_hand(truth, predictions, expected):
    assert sentence_macro_f1(truth, predictions) == pytest.approx(expected, abs=1e-15)


def test_the_papers_score_is_scikit_learns_of_each_sentence():
    draw = random.Random(1)
    truth = [[draw.randrange(9) for _ in range(length % 17 + 1)] for length in range(60)]
    predictions = [[tag if draw.random() < 0.8 else 0 for tag in tags] for tags in truth]
    each = [metrics.f1_score(gold, guess, average="macro") for gold, guess in zip(truth, predictions, strict=True)]
    assert sentence_macro_f1(truth, predictions) == pytest.approx(sum(each) / 60, abs=1e-15)
