"""Question answering (`qa`): the answer to a question as a span of its context, or none.

`AnswerForm` is what the protocols differ in: how an answer is labelled, learnt, read off and scored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from pydantic import Field
from torch import nn
from transformers import PreTrainedModel

from toolkit.core.console import console
from toolkit.core.text import counted
from toolkit.finetuning.answer_spans import AnswerSpans
from toolkit.finetuning.answer_tags import AnswerTags
from toolkit.finetuning.formats.squad import Question, read_questions
from toolkit.finetuning.paper import split_training
from toolkit.finetuning.settings import FinetuningSettings
from toolkit.finetuning.source import EncoderSource
from toolkit.finetuning.task import Outputs, Prediction, Split, Task
from toolkit.finetuning.trainer import Features


class QuestionAnsweringSettings(FinetuningSettings):
    """Fine-tuning for question answering."""

    window_overlap: int = Field(default=128, ge=0)
    """Tokens that neighbouring windows of a long context share, at most half of a window. `standard` only."""
    max_answer_length: int = Field(default=30, ge=1)
    """Longest predicted answer in tokens. `standard` only."""


@dataclass(frozen=True)
class Questions:
    """Questions of all splits, and their files."""

    files: Mapping[Split, Path]
    questions: Mapping[Split, list[Question]]


class AnswerForm(Protocol):
    """How an answer is labelled, learnt, read off and scored. Methods as in `Task`."""

    def encode(self, questions: Sequence[Question], source: EncoderSource) -> tuple[Features, int]:
        """Inputs of a split, and how many questions or contexts were truncated."""

    def network(self, source: EncoderSource) -> PreTrainedModel:
        """The encoder with a new head."""

    def logits(self, outputs: Any) -> torch.Tensor:
        """Two numbers for each token, (B, S, 2)."""

    def collate_labels(self, labels: Sequence[Any], *, width: int) -> torch.Tensor:
        """Labels of a batch."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch."""

    def num_targets(self, labels: torch.Tensor) -> int:
        """How many losses `loss` averages over."""

    def decode(
        self,
        questions: Mapping[Split, Sequence[Question]],
        features: Mapping[Split, Features],
        outputs: Mapping[Split, Outputs],
    ) -> dict[Split, list[Prediction]]:
        """Predictions with `id` and `prediction`, of the answered splits."""

    def score(self, questions: Sequence[Question], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Scores of a split."""

    def save(self, network: PreTrainedModel, folder: Path) -> None:
        """Write the network, and what reading off an answer needs."""


class QuestionAnswering(Task[Questions]):
    """Answers as spans of a context."""

    name: ClassVar[str] = "qa"
    metrics: ClassVar[Mapping[str, str]] = {"standard": "f1", "paper": "paper_f1"}
    other_metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {"standard": ("exact_match",)}
    Settings: ClassVar[type[FinetuningSettings]] = QuestionAnsweringSettings
    settings: QuestionAnsweringSettings

    def __init__(self, settings: QuestionAnsweringSettings) -> None:
        super().__init__(settings)
        self._form: AnswerForm
        if settings.protocol == "paper":
            self._form = AnswerTags()
        else:
            self._form = AnswerSpans(overlap=settings.window_overlap, max_length=settings.max_answer_length)

    def read(self, files: Mapping[Split, Path]) -> Questions:
        """Questions whose answers stand where their offsets say; `paper` cuts a missing validation split from train."""
        questions = {split: read_questions(path) for split, path in files.items()}
        if self.settings.protocol == "paper" and Split.VALIDATION not in questions:
            every = questions[Split.TRAIN]
            for split, rows in zip((Split.TRAIN, Split.VALIDATION), split_training(len(every)), strict=True):
                questions[split] = [every[row] for row in rows]
        return Questions(files, questions)

    def encode(self, data: Questions, source: EncoderSource) -> Mapping[Split, Features]:
        """Question and context; a long context becomes several windows (`paper`: loses its end)."""
        features: dict[Split, Features] = {}
        for split, questions in data.questions.items():
            features[split], num_cut = self._form.encode(questions, source)
            if num_cut:
                path = data.files.get(split, data.files[Split.TRAIN])
                console().print(f"{path}: {num_cut:,} of {counted(len(questions), 'question')} truncated.")
        return features

    def network(self, data: Questions, source: EncoderSource) -> nn.Module:
        """A stock class with two outputs for each token."""
        return self._form.network(source)

    def logits(self, outputs: Any) -> torch.Tensor:
        """Two numbers for each token, (B, S, 2)."""
        return self._form.logits(outputs)

    def collate_labels(self, labels: Sequence[Any], *, width: int) -> torch.Tensor:
        """As the protocol labels answers."""
        return self._form.collate_labels(labels, width=width)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy."""
        return self._form.loss(logits, labels)

    def num_targets(self, labels: torch.Tensor) -> int:
        """Windows (`paper`: tokens)."""
        return self._form.num_targets(labels)

    def decode(
        self, data: Questions, features: Mapping[Split, Features], outputs: Mapping[Split, Outputs]
    ) -> Mapping[Split, list[Prediction]]:
        """A stretch of the context for each question, or an empty string."""
        return self._form.decode(data.questions, features, outputs)

    def score(self, data: Questions, predictions: Mapping[Split, list[Prediction]]) -> Mapping[Split, dict[str, float]]:
        """`exact_match` and `f1` as SQuAD's script defines them; `paper_f1` over positions of tokens."""
        return {split: self._form.score(data.questions[split], rows) for split, rows in predictions.items()}

    def row(self, prediction: Prediction) -> Prediction:
        """`id` and `prediction`."""
        return {name: prediction[name] for name in ("id", "prediction")}

    def save(self, network: nn.Module, folder: Path, data: Questions) -> None:
        """The stock class, with the null threshold in its configuration."""
        assert isinstance(network, PreTrainedModel)
        self._form.save(network, folder)

    def baseline(self, data: Questions) -> float:
        """Score of empty answers: the share of test questions that have none."""
        test = data.questions[Split.TEST]
        return sum(not question.answers for question in test) / len(test)
