"""Scores of tags: entities, by seqeval, and the paper's macro-F1 over tags, by scikit-learn."""

from collections.abc import Sequence

import numpy as np
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support
from sklearn.metrics import f1_score

from toolkit.finetuning.formats.tag_schemes import scorable


def entity_scores(truth: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
    """`precision`, `recall` and `f1` of whole entities in seqeval's default mode, micro-averaged; 0 where undefined.

    Args:
        truth: tags of each sentence.
        predictions: likewise.
    """
    precision, recall, f1, _ = precision_recall_fscore_support(
        [scorable(tags) for tags in truth],
        [scorable(tags) for tags in predictions],
        average="micro",
        zero_division=0,
    )
    return {"precision": float(precision), "recall": float(recall), "f1": float(f1)}


def sentence_macro_f1(truth: Sequence[Sequence[int]], predictions: Sequence[Sequence[int | None]]) -> float:
    """The paper's score: F1 of each tag that occurs in a sentence or its prediction, O included, averaged twice.

    First over the tags of a sentence, then over the sentences. It is much higher than the F1 of entities.

    Args:
        truth: tags of each sentence, as numbers.
        predictions: likewise; words without one (None) are left out, as are sentences of such words alone.
    """
    scores = []
    for gold, predicted in zip(truth, predictions, strict=True):
        answered = [(right, answer) for right, answer in zip(gold, predicted, strict=True) if answer is not None]
        if answered:
            scores.append(f1_score(*zip(*answered, strict=True), average="macro", zero_division=0))
    return float(np.mean(scores)) if scores else 0.0
