"""Kinds of labels of whole texts (classes, numbers, sets), each from a table's cell to its scores.

A kind is chosen with `label_type` and never guessed: `0`, `1` and `2.5` may be classes or quantities, `a,b` may be one
class or two labels.
"""

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from toolkit.core.errors import UserError
from toolkit.finetuning.sc.examples import Example, Label, LabelSet

LabelledRows = tuple[Path, Sequence[Example]]
"""A file, and its rows in a split."""


class LabelKind(ABC):
    """Kind of labels: the outputs of the network, and how they are trained and decoded.

    Class attributes: `metrics`, the main one first; `problem_type`, as in configurations of transformers.
    `classes` are the labels by output, None for numbers.
    """

    metrics: ClassVar[tuple[str, ...]]
    problem_type: ClassVar[str]
    classes: LabelSet | None = None

    @abstractmethod
    def __init__(self, training: LabelledRows) -> None:
        """Read the training split."""

    @classmethod
    def restored(cls, classes: Sequence[Label] | None) -> Self:
        """The kind of a fine-tuned folder, whose network's outputs are in the labels' unit."""
        kind = cls.__new__(cls)
        kind.classes = None if classes is None else LabelSet(classes)
        return kind

    @property
    def names(self) -> list[str]:
        """Names of the network's outputs."""
        return ["number"] if self.classes is None else [str(label) for label in self.classes.labels]

    def __str__(self) -> str:
        """The first classes, for messages."""
        labels = () if self.classes is None else self.classes.labels
        return ", ".join(map(repr, labels[:10])) + (", ..." if len(labels) > 10 else "")

    def unknown(self, label: Any) -> Label | None:
        """The first label that does not occur in the training split; None if all occur."""
        assert self.classes is not None
        labels = label if isinstance(label, tuple) else (label,)
        return next((one for one in labels if one not in self.classes), None)

    def opened(self, rows: list[Example]) -> list[Example]:
        """The rows of a split that may lack labels, with placeholder labels replaced by None."""
        return rows

    def check(self, rows: LabelledRows) -> None:  # noqa: B027
        """Refuse a split that cannot be scored."""

    @abstractmethod
    def target(self, label: Any) -> Any:
        """Target of the loss for a label: a class number, a number, or a list of 0.0 and 1.0 by output."""

    @staticmethod
    @abstractmethod
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss over logits (B, outputs)."""

    @abstractmethod
    def answer(self, logits: npt.NDArray[np.float32]) -> Any:
        """The predicted label, of the labels' own type, from the logits of one text, (outputs,)."""

    @abstractmethod
    def scores(self, truth: Sequence[Any], prediction: Sequence[Any]) -> dict[str, float]:
        """Scores by metric name."""

    @abstractmethod
    def best_constant(self, training: Sequence[Any], *, metric: str) -> Any:
        """The answer that scores best if given to every row of `training`; None if no constant scores."""

    def in_label_unit(self, last: nn.Linear) -> nn.Linear:
        """The network's last layer, with outputs in the labels' unit."""
        return last


class ClassLabels(LabelKind):
    """One of two or more classes."""

    classes: LabelSet
    metrics = ("accuracy", "f1_macro", "mcc")
    problem_type = "single_label_classification"

    def __init__(self, training: LabelledRows) -> None:
        file, examples = training
        self.classes = LabelSet([example.label for example in examples])
        if len(self.classes) < 2:
            raise UserError(
                f"{file}: every row has the label {self.classes.labels[0]!r}, but at least two classes are needed. "
                "Add rows of another class, or choose another column with --label-column."
            )

    def target(self, label: Any) -> int:
        """The class number."""
        return self.classes.index(label)

    @staticmethod
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross-entropy."""
        return nn.functional.cross_entropy(logits, targets)

    def answer(self, logits: npt.NDArray[np.float32]) -> Any:
        """The most likely class."""
        return self.classes.labels[int(logits.argmax())]

    def scores(self, truth: Sequence[Any], prediction: Sequence[Any]) -> dict[str, float]:
        """`accuracy`, `f1_macro` over the classes that occur, and `mcc` (Matthews' correlation)."""
        from sklearn import metrics

        expected, found = [*map(self.classes.index, truth)], [*map(self.classes.index, prediction)]
        return {
            "accuracy": float(metrics.accuracy_score(expected, found)),
            "f1_macro": float(metrics.f1_score(expected, found, average="macro", zero_division=0)),
            "mcc": float(metrics.matthews_corrcoef(expected, found)),
        }

    def best_constant(self, training: Sequence[Any], *, metric: str) -> Any:
        """The most frequent class, whatever the metric."""
        [(majority, _)] = Counter(map(self.classes.index, training)).most_common(1)
        return self.classes.labels[majority]


class NumberLabels(LabelKind):
    """A number. The loss uses standardised targets: minus the training split's mean, divided by its deviation."""

    metrics = ("pearson", "spearman")
    problem_type = "regression"
    mean, deviation = 0.0, 1.0
    _has_sign = False
    """Whether -1 occurs in the training split."""

    def __init__(self, training: LabelledRows) -> None:
        self.check(training)
        numbers = np.array([example.label for example in training[1]], np.float64)
        self.mean, self.deviation = float(numbers.mean()), float(numbers.std())
        self._has_sign = -1 in numbers

    def unknown(self, label: Any) -> Label | None:
        """The label if it is an empty cell, else None: any number is known."""
        return "" if label == "" else None

    def opened(self, rows: list[Example]) -> list[Example]:
        """The rows without labels if all are -1, as in STS-B's test file, and training has no -1."""
        is_open = not self._has_sign and all(row.label in (None, -1) for row in rows)
        return [replace(row, label=None) for row in rows] if is_open else rows

    def check(self, rows: LabelledRows) -> None:
        """Refuse a split in which all numbers are equal: no correlation is defined on it."""
        file, examples = rows
        if all(example.label == examples[0].label for example in examples):
            raise UserError(
                f"{file}: every row has the number {examples[0].label:g}, but correlations need at least two different "
                "ones. Add rows, or choose another column with --label-column."
            )

    def target(self, label: Any) -> float:
        """The standardised number."""
        return (float(label) - self.mean) / self.deviation

    @staticmethod
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean squared error."""
        return nn.functional.mse_loss(logits.squeeze(-1), targets)

    def answer(self, logits: npt.NDArray[np.float32]) -> float:
        """The number in the labels' unit."""
        return float(logits[0]) * self.deviation + self.mean

    def scores(self, truth: Sequence[Any], prediction: Sequence[Any]) -> dict[str, float]:
        """`pearson` and `spearman`, the two correlations; 0 if all predictions are equal."""
        from scipy import stats

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.ConstantInputWarning)
            found = {
                "pearson": stats.pearsonr(truth, prediction).statistic,
                "spearman": stats.spearmanr(truth, prediction).statistic,
            }
        return {name: 0.0 if np.isnan(score) else float(score) for name, score in found.items()}

    def best_constant(self, training: Sequence[Any], *, metric: str) -> None:
        """Return None: a constant has no correlation."""

    @torch.no_grad()
    def in_label_unit(self, last: nn.Linear) -> nn.Linear:
        """The last layer with deviation and mean folded into its weights."""
        scaled = nn.Linear(last.in_features, 1, device=last.weight.device)
        scaled.weight.copy_(last.weight * self.deviation)
        scaled.bias.copy_(last.bias * self.deviation + self.mean)
        return scaled


class SetLabels(LabelKind):
    """Any number of labels for a text, possibly none."""

    classes: LabelSet
    metrics = ("f1_micro", "f1_macro", "exact_match")
    problem_type = "multi_label_classification"

    def __init__(self, training: LabelledRows) -> None:
        file, examples = training
        self.classes = LabelSet([label for example in examples for label in example.label])
        if not len(self.classes):
            raise UserError(
                f"{file}: no row has a label. Give a file whose rows have some, or choose another column with "
                "--label-column."
            )

    def target(self, label: Any) -> list[float]:
        """1.0 for each label of the set, 0.0 for each other one."""
        present = {*map(self.classes.index, label)}
        return [float(number in present) for number in range(len(self.classes))]

    @staticmethod
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Binary cross-entropy, averaged over texts and labels."""
        return nn.functional.binary_cross_entropy_with_logits(logits, targets)

    def answer(self, logits: npt.NDArray[np.float32]) -> list[Any]:
        """The labels whose probability is above one half."""
        return [self.classes.labels[number] for number in np.flatnonzero(logits > 0)]

    def scores(self, truth: Sequence[Any], prediction: Sequence[Any]) -> dict[str, float]:
        """`f1_micro`, `f1_macro` over all labels, and `exact_match`: the share of rows whose whole set is right."""
        from sklearn import metrics

        expected, found = (np.array([*map(self.target, rows)], np.int64) for rows in (truth, prediction))
        # scikit-learn takes a single column for two classes, 0 and 1, and would score both.
        options: dict[str, Any] = {"labels": [1] if expected.shape[1] == 1 else None, "zero_division": 0}
        return {
            "f1_micro": float(metrics.f1_score(expected, found, average="micro", **options)),
            "f1_macro": float(metrics.f1_score(expected, found, average="macro", **options)),
            "exact_match": float((expected == found).all(axis=1).mean()),
        }

    def best_constant(self, training: Sequence[Any], *, metric: str) -> Any:
        """The most frequent set for `exact_match`, all labels for `f1_macro`, the top few labels for `f1_micro`."""
        if metric == "exact_match":
            [(numbers, _)] = Counter(frozenset(map(self.classes.index, row)) for row in training).most_common(1)
            return [self.classes.labels[number] for number in sorted(numbers)]
        if metric == "f1_macro":
            return self.classes.labels
        counts = Counter(self.classes.index(label) for row in training for label in row).most_common()
        total = sum(count for _, count in counts)
        f1 = [
            2 * hits / (len(training) * size + total)
            for size, hits in enumerate(accumulate(count for _, count in counts), start=1)
        ]
        size = 1 + f1.index(max(f1))
        return [self.classes.labels[number] for number, _ in counts[:size]]


LABEL_TYPES: Mapping[str, type[LabelKind]] = {"class": ClassLabels, "number": NumberLabels, "set": SetLabels}
