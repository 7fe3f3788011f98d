"""SQuAD's metrics as its official script (evaluate-v2.0.py) defines them, and the choice of the null threshold.

No package offers them without a download. Scores are per question, in [0, 1].
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    """Lower-case, remove ASCII punctuation, then articles, and separate words by single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Iterable[str]) -> float:
    """1 if the prediction equals one of the answers or, without answers, is empty; else 0."""
    predicted = normalize(prediction)
    return float(any(predicted == answer for answer in _normalized(answers)))


def f1(prediction: str, answers: Iterable[str]) -> float:
    """F1 of the words shared with the best-matching answer; without answers, 1 if the prediction is empty, else 0."""
    predicted = normalize(prediction).split()
    return max(_overlap(predicted, answer.split()) for answer in _normalized(answers))


def _normalized(answers: Iterable[str]) -> list[str]:
    """Normalize answers, leaving out those with nothing but articles and punctuation."""
    return [answer for answer in map(normalize, answers) if answer] or [""]


def _overlap(predicted: list[str], answer: list[str]) -> float:
    if not predicted or not answer:
        return float(predicted == answer)
    num_shared = (Counter(predicted) & Counter(answer)).total()
    if num_shared == 0:
        return 0.0
    precision, recall = num_shared / len(predicted), num_shared / len(answer)
    return 2 * precision * recall / (precision + recall)


def position_f1(predicted: Iterable[int], answer: Iterable[int]) -> float:
    """F1 of token positions, as the paper's authors compute it: an empty set counts as position 0."""
    positions, truth = set(predicted) or {0}, set(answer) or {0}
    return 2 * len(positions & truth) / (len(positions) + len(truth))


def best_threshold(
    differences: npt.NDArray[np.float64], if_answered: Sequence[float], if_null: Sequence[float]
) -> float:
    """The threshold with the best mean score if questions whose difference is above it are left unanswered.

    The difference is a question's null score minus its best span's; a question scores `if_answered`, or `if_null`.
    """
    order = np.argsort(differences, kind="stable")
    ascending = differences[order]
    gains = np.cumsum((np.asarray(if_answered) - np.asarray(if_null))[order])
    # A threshold cannot separate equal differences: it is at the last of them, or below all.
    ends = np.flatnonzero(np.append(ascending[1:] != ascending[:-1], True))
    best = ends[int(np.argmax(gains[ends]))]
    return float(ascending[best] if gains[best] > 0 else np.nextafter(ascending[0], -np.inf))
