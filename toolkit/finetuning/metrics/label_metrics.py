"""Scores of whole texts' labels, by scikit-learn and scipy."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np


def classification_scores(truth: Sequence[int], prediction: Sequence[int]) -> dict[str, float]:
    """`accuracy`, `f1_macro` over the classes that occur, and `mcc` (Matthews' correlation), from class numbers."""
    from sklearn import metrics

    return {
        "accuracy": float(metrics.accuracy_score(truth, prediction)),
        "f1_macro": float(metrics.f1_score(truth, prediction, average="macro", zero_division=0)),
        "mcc": float(metrics.matthews_corrcoef(truth, prediction)),
    }


def regression_scores(truth: Sequence[float], prediction: Sequence[float]) -> dict[str, float]:
    """`pearson` and `spearman`, the two correlations; 0 where all predictions are equal."""
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        found = {
            "pearson": stats.pearsonr(truth, prediction).statistic,
            "spearman": stats.spearmanr(truth, prediction).statistic,
        }
    return {name: 0.0 if np.isnan(score) else float(score) for name, score in found.items()}


def set_scores(truth: Sequence[Sequence[float]], prediction: Sequence[Sequence[float]]) -> dict[str, float]:
    """`f1_micro`, `f1_macro` over all labels, and `exact_match`: the share of rows whose whole set is right.

    Args:
        truth: per row, 1.0 or 0.0 for each label.
        prediction: alike.
    """
    from sklearn import metrics

    expected, found = np.array(truth, np.int64), np.array(prediction, np.int64)
    # scikit-learn takes a single column for two classes, 0 and 1, and would score both.
    options: dict[str, Any] = {"labels": [1] if expected.shape[1] == 1 else None, "zero_division": 0}
    return {
        "f1_micro": float(metrics.f1_score(expected, found, average="micro", **options)),
        "f1_macro": float(metrics.f1_score(expected, found, average="macro", **options)),
        "exact_match": float((expected == found).all(axis=1).mean()),
    }
