"""A linear probe: logistic regression on vectors of an encoder that is not trained.

Each input of a task gives one vector (sequence classification), or one for each of its words (token classification),
the mean of the encoder's last hidden states over its tokens. The regression is scikit-learn's, multinomial, L2 with
C = 1, on vectors standardized by the training split. Nothing is drawn, so equal weights give equal scores.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from toolkit.finetuning.task import Split, Task
from toolkit.finetuning.trainer import Features

Vectors = npt.NDArray[np.float32]
HiddenStates = Callable[[Features], Iterator[tuple[int, Vectors]]]
"""Gives the number of each input and its last hidden states, (tokens, D); in any order."""


def probe_scores(
    task: Task[Any], data: Any, features: Mapping[Split, Features], hidden_states: HiddenStates, *, steps: int
) -> dict[str, float]:
    """Train the probe on the training split and score it on the test split, by the names of the task's metrics.

    Args:
        task: `sc` or `tc`.
        data: what `task.read` gave.
        features: what `task.encode` gave for an encoder.
        hidden_states: of that encoder.
        steps: most iterations of L-BFGS.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, test = features[Split.TRAIN], features[Split.TEST]
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=steps))
    with warnings.catch_warnings():
        # To stop there is what `steps` asks for.
        warnings.simplefilter("ignore", ConvergenceWarning)
        vectors = _pooled(train, hidden_states)
        probe.fit(vectors, [row["labels"] for row in train])
    classes = np.asarray(probe.predict(_pooled(test, hidden_states)))
    outputs = np.eye(int(max(probe.classes_)) + 1, dtype=np.float32)[classes]
    predictions = task.decode(data, {Split.TEST: test}, {Split.TEST: list(outputs)})
    return task.score(data, predictions)[Split.TEST]


def _pooled(features: Features, hidden_states: HiddenStates) -> npt.NDArray[np.float64]:
    pooled: list[Vectors | None] = [None] * len(features)
    for number, hidden_SD in hidden_states(features):
        pooled[number] = hidden_SD.mean(axis=0)
    return np.stack([vector for vector in pooled if vector is not None]).astype(np.float64)
