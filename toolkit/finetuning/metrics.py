"""Scores of a classification, by scikit-learn."""

from collections.abc import Sequence

SEQUENCE_CLASSIFICATION_METRIC = "accuracy"


def classification_scores(truth: Sequence[int], prediction: Sequence[int]) -> dict[str, float]:
    """`accuracy`, `f1_macro` over the classes that occur, and `mcc` (Matthews' correlation), from class numbers."""
    from sklearn import metrics

    return {
        "accuracy": float(metrics.accuracy_score(truth, prediction)),
        "f1_macro": float(metrics.f1_score(truth, prediction, average="macro", zero_division=0)),
        "mcc": float(metrics.matthews_corrcoef(truth, prediction)),
    }
