"""Sequence classification (`sc`): one label for a text or a pair of texts."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import nn

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.finetuning.examples import Example, LabelSet, text_columns_of, to_examples
from toolkit.finetuning.heads import new_classifier, save_classifier
from toolkit.finetuning.inputs import InputBuilder, check_not_empty
from toolkit.finetuning.settings import FinetuningSettings
from toolkit.finetuning.source import EncoderSource
from toolkit.finetuning.tables import read_table
from toolkit.finetuning.task import Outputs, Prediction, Split, Task
from toolkit.finetuning.trainer import Features

Name = Annotated[str, Field(min_length=1)]


class SequenceClassificationSettings(FinetuningSettings):
    """Fine-tuning for sequence classification."""

    text_columns: tuple[Name, ...] | None = Field(default=None, min_length=1, max_length=2, strict=False)
    """Column of the text, or both of a text pair. Unset: `text`, and `text_pair` if the training file has it."""
    label_column: Name = "label"
    """Column of the label."""


@dataclass(frozen=True)
class LabelledTexts:
    """Examples of all splits, their files, and the labels of the training split."""

    files: Mapping[Split, Path]
    examples: Mapping[Split, list[Example]]
    labels: LabelSet


class SequenceClassification(Task[LabelledTexts]):
    """One label for a text or a pair of texts, by mean pooling and a small head."""

    name: ClassVar[str] = "sc"
    metrics: ClassVar[Mapping[str, str]] = {"standard": "accuracy", "paper": "paper_accuracy"}
    Settings: ClassVar[type[FinetuningSettings]] = SequenceClassificationSettings
    settings: SequenceClassificationSettings

    def read(self, files: Mapping[Split, Path]) -> LabelledTexts:
        """Rows of tables, with a label that the training file has."""
        tables = {split: read_table(path) for split, path in files.items()}
        columns = self.settings.text_columns or text_columns_of(tables[Split.TRAIN])
        examples = {
            split: to_examples(table, text_columns=columns, label_column=self.settings.label_column)
            for split, table in tables.items()
        }
        return LabelledTexts(files, examples, _label_set(files, examples))

    def encode(self, data: LabelledTexts, source: EncoderSource) -> Mapping[Split, Features]:
        """Texts, truncated where they are longer than the model takes."""
        build = InputBuilder(source)
        features: dict[Split, Features] = {}
        for split, path in data.files.items():
            examples = data.examples[split]
            pairs = [example.text_pair for example in examples if example.text_pair is not None]
            rows, num_cut = build([example.text for example in examples], pairs or None)
            check_not_empty(rows, str(path))
            if num_cut:
                console().print(
                    f"{path}: {num_cut:,} of {len(rows):,} texts were truncated to {source.max_length:,} tokens."
                )
            classes = [data.labels.index(example.label) for example in examples]
            features[split] = [{**row, "labels": label} for row, label in zip(rows, classes, strict=True)]
        return features

    def network(self, data: LabelledTexts, source: EncoderSource) -> nn.Module:
        """Mean pooling and a small head over the encoder."""
        names = [str(label) for label in data.labels.labels]
        return new_classifier(source, names, problem_type="single_label_classification")

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy."""
        return nn.functional.cross_entropy(logits, labels)

    def decode(
        self, data: LabelledTexts, features: Mapping[Split, Features], outputs: Mapping[Split, Outputs]
    ) -> Mapping[Split, list[Prediction]]:
        """The likeliest label of each example, beside the true one."""
        return {
            split: [
                {"prediction": data.labels.labels[int(answer.argmax())], "label": example.label}
                for answer, example in zip(answers, data.examples[split], strict=True)
            ]
            for split, answers in outputs.items()
        }

    def score(
        self, data: LabelledTexts, predictions: Mapping[Split, list[Prediction]]
    ) -> Mapping[Split, dict[str, float]]:
        """`accuracy`, `f1_macro` over the classes that occur, and `mcc` (Matthews' correlation)."""
        return {
            split: classification_scores(
                [data.labels.index(row["label"]) for row in rows],
                [data.labels.index(row["prediction"]) for row in rows],
            )
            for split, rows in predictions.items()
        }

    def save(self, network: nn.Module, folder: Path, data: LabelledTexts) -> None:
        """Encoder and head, and the label of each class number with its type."""
        save_classifier(network, folder)
        (folder / "labels.json").write_text(json.dumps(data.labels.labels, ensure_ascii=False) + "\n", encoding="utf-8")

    def baseline(self, data: LabelledTexts) -> float:
        """Test accuracy of the training split's most frequent label."""
        classes = {split: [data.labels.index(row.label) for row in rows] for split, rows in data.examples.items()}
        [(majority, _)] = Counter(classes[Split.TRAIN]).most_common(1)
        return classes[Split.TEST].count(majority) / len(classes[Split.TEST])


def classification_scores(truth: Sequence[int], prediction: Sequence[int]) -> dict[str, float]:
    """`accuracy`, `f1_macro` over the classes that occur, and `mcc` (Matthews' correlation), from class numbers."""
    from sklearn import metrics

    return {
        "accuracy": float(metrics.accuracy_score(truth, prediction)),
        "f1_macro": float(metrics.f1_score(truth, prediction, average="macro", zero_division=0)),
        "mcc": float(metrics.matthews_corrcoef(truth, prediction)),
    }


def _label_set(files: Mapping[Split, Path], examples: Mapping[Split, list[Example]]) -> LabelSet:
    labels = LabelSet([example.label for example in examples[Split.TRAIN]])
    if len(labels) < 2:
        raise UserError(
            f"{files[Split.TRAIN]}: every row has the label {labels.labels[0]!r}, but at least two classes are needed. "
            "Add rows of another class, or choose another column with --label-column."
        )
    for split, path in files.items():
        for number, example in enumerate(examples[split], start=1):
            if example.label not in labels:
                known = ", ".join(map(repr, labels.labels[:10])) + (", ..." if len(labels) > 10 else "")
                raise UserError(
                    f"{path}, row {number}: the label {example.label!r} does not occur in the training file "
                    f"{files[Split.TRAIN]}, which has {known}. Remove the row, or add training rows with that label."
                )
    return labels
