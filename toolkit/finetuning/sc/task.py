"""Sequence classification (`sc`): a class, a number or a set of labels for a text or a pair of texts."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import nn

from toolkit.core.console import console
from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.finetuning.bad_rows import BadRowError, BadRows, CheckedData, Labels
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.heads import (
    LABELS_FILE,
    has_head_file,
    load_classifier,
    new_classifier,
    read_labels,
    save_classifier,
)
from toolkit.finetuning.inputs import check_not_empty, encode_texts, paper_inputs
from toolkit.finetuning.named.published_forms import DataFile, table_of
from toolkit.finetuning.sc.examples import (
    Example,
    labels_of_pair,
    paper_text,
    read_class,
    read_number,
    read_set,
    to_examples,
)
from toolkit.finetuning.sc.labels import LABEL_TYPES, LabelKind
from toolkit.finetuning.settings import SPLIT_AT_COMMAS, FinetuningSettings, Name, Split
from toolkit.finetuning.task import Outputs, Prediction, Task
from toolkit.finetuning.trainer import Features
from toolkit.tables import read_table


class SequenceClassificationSettings(FinetuningSettings):
    """Fine-tuning for sequence classification."""

    text_columns: (
        Annotated[tuple[Name, ...], Field(min_length=1, max_length=2, strict=False), SPLIT_AT_COMMAS] | None
    ) = None
    """Column of the text, or both columns of a pair. Unset: `text`, and `text_pair` if the training file has it."""
    label_column: Name = "label"
    """Column of the label."""
    label_type: Literal["class", "number", "set"] = "class"
    """`class`: one of the training file's labels. `number`: regression. `set`: any number of labels for each text."""
    label_separator: Name = ","
    """Separator of the labels of a set in one string."""
    pair_labels: tuple[Name, Name] | None = Field(default=None, strict=False)
    """Labels that the `paper` protocol writes before the texts of a pair. Unset: the columns' names, capitalized."""

    @field_validator("label_type")
    @classmethod
    def _paper_has_classes(cls, value: str, info: ValidationInfo) -> str:
        if value != "class" and info.data.get("protocol") == "paper":
            raise ValueError("the protocol 'paper' has classes only. Choose the protocol 'standard'")
        return value


@dataclass(frozen=True)
class LabelledTexts(CheckedData):
    """Examples and file of each split, the names of the training file's text columns, and the labels."""

    files: Mapping[Split, Path]
    examples: Mapping[Split, Sequence[Example]]
    columns: tuple[str, ...]
    labels: LabelKind


class SequenceClassification(Task[LabelledTexts]):
    """A label for a text or a pair of texts, by mean pooling and a small head."""

    name: ClassVar[str] = "sc"
    pipeline: ClassVar[str] = "text-classification"
    metrics: ClassVar[Mapping[str, str]] = {"standard": "accuracy", "paper": "paper_accuracy"}
    Settings: ClassVar[type[FinetuningSettings]] = SequenceClassificationSettings
    settings: SequenceClassificationSettings

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Metrics of the label type; under the paper's protocol only its accuracy."""
        return tuple(self._scores)

    @property
    def _scores(self) -> Mapping[str, str]:
        """The label type's names of metrics, by their names in results."""
        return {"paper_accuracy": "accuracy"} if self.is_paper else {name: name for name in self._kind.metrics}

    @property
    def _kind(self) -> type[LabelKind]:
        return LABEL_TYPES[self.settings.label_type]

    def read(self, files: Mapping[Split, DataFile]) -> LabelledTexts:
        """Read rows of tables, whose labels must fit those of the training file."""
        tables, bad = {split: table_of(file) for split, file in files.items()}, BadRows(self.settings.bad_rows)
        paths, training = {split: table.path for split, table in tables.items()}, tables.pop(Split.TRAIN)
        usual = ("text", "text_pair") if "text_pair" in training.columns else ("text",)
        columns = self.settings.text_columns or usual
        to_rows = partial(to_examples, bad=bad, text_columns=columns, label_column=self.settings.label_column)
        trained = to_rows(training, read_label=self._read_label)
        labels = self._kind((training.path, trained))
        read_label = self._known_label(labels, training.path)
        examples: dict[Split, Sequence[Example]] = {Split.TRAIN: trained}
        for split, table in tables.items():
            rows = labels.opened(to_rows(table, read_label=read_label, labels=Labels.OPTIONAL))
            examples[split] = rows
            for row in rows:
                if row.label is None:
                    bad.note(table.path, "without a label: predicted, not scored", f"row {row.row}")
            if labelled := [row for row in rows if row.label is not None]:
                labels.check((table.path, labelled))
            elif split is Split.VALIDATION:
                raise UserError(f"{table.path}: no row has a label. Give another file, or none (--validation).")
        is_scored = any(row.label is not None for row in examples[Split.TEST])
        cut = self.with_validation(examples)
        paths = {**dict.fromkeys(cut, training.path), **paths}
        return LabelledTexts(paths, cut, columns, labels, bad=bad, is_scored=is_scored)

    @property
    def _read_label(self) -> Callable[[object, str], Any]:
        if self.settings.label_type == "set":
            return partial(read_set, separator=self.settings.label_separator)
        return read_class if self.settings.label_type == "class" else read_number

    def _known_label(self, labels: LabelKind, training: Path) -> Callable[[object, str], Any]:
        """Reader of labels that occur in the training file; a missing label becomes None."""

        def read(value: object, place: str) -> Any:
            # As in GLUE's test files; for sets, an empty cell is an empty set.
            is_missing = str(value) in ("-1", "-1.0") or (value == "" and self.settings.label_type != "set")
            if is_missing and labels.unknown(value) is not None:
                return None
            label = self._read_label(value, place)
            if (unknown := labels.unknown(label)) is None:
                return label
            problem = f"the label {unknown!r} does not occur in the training file"
            remedy = "Remove the row, or add training rows with that label."
            raise BadRowError(
                place.rpartition(": ")[0], f"{problem} {training}, which has {labels}", remedy, reason=problem
            )

        return read

    def notes(self, data: LabelledTexts) -> dict[str, Any]:
        """Names of the text columns, from which the labels of pairs are."""
        return {"columns": data.columns}

    def read_open(self, file: Path, folder: Path, notes: Mapping[str, Any]) -> LabelledTexts:
        """Read rows of a table, with labels that the folder knows, or without."""
        table, bad, labels = read_table(file), BadRows(self.settings.bad_rows), self._kind.restored(read_labels(folder))
        trained = tuple(notes["columns"])
        columns = self.settings.text_columns or trained
        if len(columns) != len(trained):
            expected, found = (f"{counted(len(names), 'text')} ({', '.join(names)})" for names in (trained, columns))
            raise UserError(
                f"{folder} was fine-tuned on rows of {expected}, but {found} of each row would be read. Choose as many "
                "columns with --text-columns, or another model."
            )
        known = self._known_label(labels, file)

        def read(value: object, place: str) -> Any:
            with suppress(UserError):
                return known(value, place)

        column = self.settings.label_column
        examples = to_examples(
            table, bad=bad, text_columns=columns, label_column=column, read_label=read, labels=Labels.OPTIONAL
        )
        examples = labels.opened(examples)
        return LabelledTexts({Split.TEST: table.path}, {Split.TEST: examples}, trained, labels, bad=bad)

    def load(self, source: EncoderSource, data: LabelledTexts) -> nn.Module:
        """The classifier."""
        return load_classifier(source.model).network

    def encode(self, data: LabelledTexts, source: EncoderSource) -> Mapping[Split, Features]:
        """Texts, truncated if they exceed the model's limit."""
        features: dict[Split, Features] = {}
        for split, path in data.files.items():
            examples = data.examples[split]
            if self.is_paper:
                names = self.pair_labels(data)
                texts = [paper_text(example.text, example.text_pair, names) for example in examples]
                rows, num_cut = paper_inputs(texts, source)
            else:
                second = [example.text_pair for example in examples if example.text_pair is not None]
                rows, num_cut = encode_texts(source, [example.text for example in examples], second or None)
            check_not_empty(rows, str(path), numbers=[example.row for example in examples])
            if num_cut:
                console().print(
                    f"{path}: {num_cut:,} of {len(rows):,} texts were truncated to {source.max_length:,} tokens."
                )
            targets = [None if one.label is None else data.labels.target(one.label) for one in examples]
            features[split] = [{**row, "labels": target} for row, target in zip(rows, targets, strict=True)]
        return features

    def pair_labels(self, data: LabelledTexts) -> tuple[str, ...]:
        """Names that the `paper` protocol writes before the texts."""
        return self.settings.pair_labels or labels_of_pair(data.columns)

    def network(self, data: LabelledTexts, source: EncoderSource) -> nn.Module:
        """Mean pooling and a small head over the encoder."""
        return new_classifier(source, data.labels.names, problem_type=data.labels.problem_type)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy, squared error or binary cross-entropy, by label type."""
        return self._kind.loss(logits, labels)

    def decode(
        self, data: LabelledTexts, features: Mapping[Split, Features], outputs: Mapping[Split, Outputs]
    ) -> Mapping[Split, list[Prediction]]:
        """The prediction for each example, and its true label."""
        return {
            split: [
                {"prediction": data.labels.answer(answer), "label": example.label}
                for answer, example in zip(answers, data.examples[split], strict=True)
            ]
            for split, answers in outputs.items()
        }

    def score(
        self, data: LabelledTexts, predictions: Mapping[Split, list[Prediction]]
    ) -> Mapping[Split, dict[str, float]]:
        """Scores of the label type; under the paper's protocol only its accuracy."""
        scores = {}
        for split, rows in predictions.items():
            if labelled := [row for row in rows if row["label"] is not None]:
                truth, answers = ([row[key] for row in labelled] for key in ("label", "prediction"))
                scores[split] = data.labels.scores(truth, answers)
        return {split: {name: row[of] for name, of in self._scores.items()} for split, row in scores.items()}

    def save(self, network: nn.Module, folder: Path, data: LabelledTexts) -> None:
        """Write encoder and head, and the label of each output with its type."""
        last: Any = network.classifier
        network.classifier = data.labels.in_label_unit(last)
        try:
            save_classifier(network, folder)
        finally:
            network.classifier = last
        if data.labels.classes is not None:
            labels = json.dumps(data.labels.classes.labels, ensure_ascii=False)
            (folder / LABELS_FILE).write_text(f"{labels}\n", encoding="utf-8")

    @staticmethod
    def usage(model: Path) -> str:
        """A pipeline if transformers loads encoder and head together, else `load_classifier`."""
        if has_head_file(model):
            return f"toolkit.finetuning.load_classifier({str(model)!r})('a text')"
        return f"transformers.pipeline('text-classification', model={str(model)!r})('a text')"

    def baseline(self, data: LabelledTexts) -> float | None:
        """Score of the constant answer that is best on the training split; None for numbers."""
        training, test = ([row.label for row in data.examples[split]] for split in (Split.TRAIN, Split.TEST))
        constant = data.labels.best_constant(training, metric=self.metric)
        if constant is None or not data.is_scored:
            return None
        rows = [{"label": label, "prediction": constant} for label in test]
        return self.score(data, {Split.TEST: rows})[Split.TEST][self.metric]
