"""A linear probe: logistic regression on vectors of an encoder that is not trained.

Each input of a task gives one vector (sequence classification), or one for each of its words (token classification),
the mean of the encoder's last hidden states over its tokens. The regression is scikit-learn's, multinomial, L2 with
C = 1, on vectors standardized by the training split. Nothing is drawn, so equal weights give equal scores.

Shapes: S positions in an input, D model width.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from toolkit.finetuning.settings import Split
from toolkit.finetuning.task import Task
from toolkit.finetuning.tc.word_inputs import NO_WORD
from toolkit.finetuning.trainer import Features

Vectors = npt.NDArray[np.float32]
HiddenStates = Callable[[Features], Iterator[tuple[int, Vectors]]]
"""Gives the number of each input and its last hidden states, (tokens, D); in any order."""


def probe_scores(
    task: Task[Any], data: Any, features: Mapping[Split, Features], hidden_states: HiddenStates, *, steps: int
) -> dict[str, float]:
    """Train the probe on the training split and score it on the test split, by the names of the task's metrics.

    The task is `sc` or `tc`; `steps` are the most iterations of L-BFGS.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, test = (_items(features[split]) for split in (Split.TRAIN, Split.TEST))
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=steps))
    with warnings.catch_warnings():
        # To stop there is what `steps` asks for.
        warnings.simplefilter("ignore", ConvergenceWarning)
        probe.fit(_pooled(train, features[Split.TRAIN], hidden_states), [item.label for row in train for item in row])
    classes = iter(probe.predict(_pooled(test, features[Split.TEST], hidden_states)).tolist())
    width = int(max(probe.classes_)) + 1
    outputs = [_output(row, inputs, classes, width) for row, inputs in zip(test, features[Split.TEST], strict=True)]
    predictions = task.decode(data, {Split.TEST: features[Split.TEST]}, {Split.TEST: outputs})
    return task.score(data, predictions)[Split.TEST]


@dataclass(frozen=True)
class _Item:
    tokens: slice | npt.NDArray[np.intp]
    """Those of its vector."""
    answers: slice | int
    """Where the task looks for its class."""
    label: int


def _items(features: Features) -> list[list[_Item]]:
    return [_words(row) if "words" in row else [_Item(slice(None), slice(None), row["labels"])] for row in features]


def _words(row: Mapping[str, Any]) -> list[_Item]:
    word_of = np.asarray(row["token_words"])
    return [
        _Item(np.flatnonzero(word_of == word), place, label)
        for place, (word, label) in enumerate(zip(row["words"], row["labels"], strict=True))
        if word != NO_WORD
    ]


def _pooled(items: Sequence[list[_Item]], features: Features, hidden_states: HiddenStates) -> npt.NDArray[np.float64]:
    pooled: list[list[Vectors]] = [[] for _ in features]
    for number, hidden_SD in hidden_states(features):
        pooled[number] = [hidden_SD[item.tokens].mean(axis=0) for item in items[number]]
    return np.stack([vector for row in pooled for vector in row]).astype(np.float64)


def _output(items: list[_Item], row: Mapping[str, Any], classes: Iterator[int], width: int) -> Vectors:
    """Answer of a network that is sure of these classes."""
    output = np.zeros((len(row["input_ids"]), width), np.float32)
    for item in items:
        output[item.answers, next(classes)] = 1
    return output if "words" in row else output[0]
