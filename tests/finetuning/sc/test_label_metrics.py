import pytest

from toolkit.finetuning.sc.examples import Example
from toolkit.finetuning.sc.labels import ClassLabels, SetLabels


def of(kind, *labels):
    return kind(("train.tsv", [Example("a text", None, label, row) for row, label in enumerate(labels, start=1)]))


def test_scores_of_a_case_done_by_hand():
    # Class 0: precision 2/3, recall 1; class 1: precision 1, recall 1/2. Confusion [[2, 0], [1, 1]].
    scores = of(ClassLabels, 0, 1).scores([0, 0, 1, 1], [0, 0, 0, 1])
    assert scores["accuracy"] == 0.75
    assert scores["f1_macro"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert scores["mcc"] == pytest.approx((2 * 1 - 0 * 1) / (3 * 1 * 2 * 2) ** 0.5)


def test_one_class_always_scores_no_correlation():
    scores = of(ClassLabels, 0, 1).scores([0, 0, 1], [0, 0, 0])
    assert scores == {"accuracy": pytest.approx(2 / 3), "f1_macro": pytest.approx(0.4), "mcc": 0.0}


@pytest.mark.parametrize(
    ("predicted", "f1", "exact"), [((), 0.0, 0.9), (range(100), 2 * 10 / 110, 0.1), (range(5, 15), 0.5, 0.9)]
)
def test_sets_of_a_single_label_are_scored_by_its_f1(predicted, f1, exact):
    """Ten of a hundred rows have the label: leaving it out everywhere finds nothing, however many rows are right."""
    truth, prediction = ([("x",) * (row in chosen) for row in range(100)] for chosen in (range(10), predicted))
    scores = of(SetLabels, ("x",)).scores(truth, prediction)
    assert scores == {"f1_micro": pytest.approx(f1), "f1_macro": pytest.approx(f1), "exact_match": exact}
