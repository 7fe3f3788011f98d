import pytest

from toolkit.finetuning.metrics.label_metrics import classification_scores


def test_scores_of_a_case_done_by_hand():
    # Class 0: precision 2/3, recall 1; class 1: precision 1, recall 1/2. Confusion [[2, 0], [1, 1]].
    scores = classification_scores([0, 0, 1, 1], [0, 0, 0, 1])
    assert scores["accuracy"] == 0.75
    assert scores["f1_macro"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert scores["mcc"] == pytest.approx((2 * 1 - 0 * 1) / (3 * 1 * 2 * 2) ** 0.5)


def test_one_class_always_scores_no_correlation():
    scores = classification_scores([0, 0, 1], [0, 0, 0])
    assert scores == {"accuracy": pytest.approx(2 / 3), "f1_macro": pytest.approx(0.4), "mcc": 0.0}
