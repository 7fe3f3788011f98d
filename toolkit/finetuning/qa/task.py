"""Question answering (`qa`): the answer to a question as a span of its context, or none.

Each token of a window gets a score as first and as last token of the answer; a special token stands for "no answer",
which is also the label of a window without the answer. The best span and the lowest null score are taken over all
windows of a context; the question is left unanswered if the null score exceeds the span's by more than a threshold.
The paper's authors tag each token instead, and score correctly tagged positions: a separate class.

Shapes: B inputs, S positions in an input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import nn
from transformers import AutoModelForQuestionAnswering, AutoModelForTokenClassification, PreTrainedModel

from toolkit.core.console import console
from toolkit.core.text import counted
from toolkit.finetuning.bad_rows import BadRows, CheckedData, Labels
from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.heads import load_network
from toolkit.finetuning.named.published_forms import DataFile
from toolkit.finetuning.qa import squad_metrics
from toolkit.finetuning.qa.answers import (
    answer_text,
    best_spans,
    choose_threshold,
    has_question_answering,
    tagged_inputs,
    tagged_text,
    window_label,
)
from toolkit.finetuning.qa.squad import Question, read_questions
from toolkit.finetuning.qa.windows import WindowBuilder
from toolkit.finetuning.settings import FinetuningSettings, Split
from toolkit.finetuning.task import ClassesOfTokens, Outputs, Prediction, Task
from toolkit.finetuning.trainer import Features


class QuestionAnsweringSettings(FinetuningSettings):
    """Fine-tuning for question answering."""

    window_overlap: int = Field(default=128, ge=0)
    """Tokens that neighbouring windows of a long context share, at most half of a window. `standard` only."""
    max_answer_length: int = Field(default=30, ge=1)
    """Longest predicted answer in tokens. `standard` only."""


@dataclass(frozen=True)
class Questions(CheckedData):
    """Questions of all splits, and their files."""

    files: Mapping[Split, DataFile]
    questions: Mapping[Split, Sequence[Question]]


class QuestionAnswering(Task[Questions]):
    """Answers by their first and last token. With the protocol `paper`, an instance is of the paper's class."""

    name: ClassVar[str] = "qa"
    pipeline: ClassVar[str] = "question-answering"
    metrics: ClassVar[Mapping[str, str]] = {"standard": "f1", "paper": "paper_f1"}
    other_metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {"standard": ("exact_match",)}
    Settings: ClassVar[type[FinetuningSettings]] = QuestionAnsweringSettings
    settings: QuestionAnsweringSettings
    _labels: ClassVar[tuple[str, str]] = ("start", "end")

    def __new__(cls, settings: QuestionAnsweringSettings) -> "QuestionAnswering":
        """An instance of the protocol's class."""
        return super().__new__(_OF_PROTOCOL[settings.protocol] if cls is QuestionAnswering else cls)

    def __getnewargs__(self) -> tuple[QuestionAnsweringSettings]:
        """Arguments of `__new__`, for copies."""
        return (self.settings,)

    def __init__(self, settings: QuestionAnsweringSettings) -> None:
        super().__init__(settings)
        self._null_threshold: float | None = None

    def read(self, files: Mapping[Split, DataFile]) -> Questions:
        """Read questions, whose answers must be at their offsets."""
        bad = BadRows(self.settings.bad_rows)
        read = {
            split: read_questions(file, bad, labels=Labels.OPTIONAL if split is Split.TEST else Labels.NEEDED)
            for split, file in files.items()
        }
        for question in read[Split.TEST]:
            if question.answers is None:
                bad.note(files[Split.TEST], "without answers: predicted, not scored", f"question {question.id!r}")
        is_scored = any(question.answers is not None for question in read[Split.TEST])
        return Questions(files, self.with_validation(read), bad=bad, is_scored=is_scored)

    def encode(self, data: Questions, source: EncoderSource) -> Mapping[Split, Features]:
        """Question and context; a long context becomes several windows (`paper`: loses its end)."""
        features: dict[Split, Features] = {}
        for split, questions in data.questions.items():
            features[split], num_cut = self.inputs(questions, source)
            if num_cut:
                path = data.files.get(split) or data.files[Split.TRAIN]
                console().print(f"{path}: {num_cut:,} of {counted(len(questions), 'question')} truncated.")
        return features

    def read_open(self, file: Path, folder: Path, notes: Mapping[str, Any]) -> Questions:
        """Read questions without their answers."""
        bad = BadRows(self.settings.bad_rows)
        questions = read_questions(file, bad, labels=Labels.UNUSED)
        return Questions({Split.TEST: file}, {Split.TEST: questions}, bad=bad)

    def load(self, source: EncoderSource, data: Questions) -> nn.Module:
        """Load the class that `network` chose, and its null threshold."""
        network: PreTrainedModel = self._class_of(source).from_pretrained(source.model, config=source.config)
        self._null_threshold = getattr(network.config, "null_threshold", None)
        return network

    def inputs(self, questions: Sequence[Question], source: EncoderSource) -> tuple[Features, int]:
        """Windows of the questions of a split, and how many questions were truncated.

        The label of a window is the start and end of its first answer, and the window's length in tokens.
        """
        build = WindowBuilder(source, overlap=self.settings.window_overlap)
        windows, num_cut = build(
            [question.question for question in questions], [question.context for question in questions]
        )
        features = [
            {
                **window.inputs,
                "labels": [*window_label(window, question), len(window.offsets)],
                "of": number,
                "window": window,
            }
            for number, (question, group) in enumerate(zip(questions, windows, strict=True))
            for window in group
        ]
        return features, num_cut

    def network(self, data: Questions, source: EncoderSource) -> nn.Module:
        """The stock class for question answering, or else for token classification with the labels start and end.

        Some stock question-answering classes, such as Llama's, name their encoder differently from the folder and would
        go on with random weights; EuroBERT has none.
        """
        return load_network(self._class_of(source), source, labels=self._labels)

    def _class_of(self, source: EncoderSource) -> Any:
        has_own = has_question_answering(source.config)
        return AutoModelForQuestionAnswering if has_own else AutoModelForTokenClassification

    def logits(self, outputs: Any) -> torch.Tensor:
        """Start and end logits of each token, (B, S, 2), from either class."""
        if hasattr(outputs, "start_logits"):
            return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
        return super().logits(outputs)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of start and end over the tokens of a window, padding masked.

        Labels are start, end and number of tokens, (B, 3).
        """
        is_padding_BS = torch.arange(logits.shape[1], device=logits.device) >= labels[:, 2:]
        masked = logits.masked_fill(is_padding_BS.unsqueeze(-1), torch.finfo(logits.dtype).min)
        start, end = (nn.functional.cross_entropy(masked[:, :, side], labels[:, side]) for side in (0, 1))
        return (start + end) / 2

    def decode(
        self, data: Questions, features: Mapping[Split, Features], outputs: Mapping[Split, Outputs]
    ) -> Mapping[Split, list[Prediction]]:
        """The best span of each question, or "" above the threshold, which is chosen on the validation split."""
        longest = self.settings.max_answer_length
        spans = {
            split: best_spans(data.questions[split], features[split], rows, max_length=longest)
            for split, rows in outputs.items()
        }
        if Split.TRAIN in data.questions:
            self._null_threshold = choose_threshold(data.questions, spans.get(Split.VALIDATION))
        return {
            split: [
                {"id": question.id, "prediction": answer_text(span, self._null_threshold)}
                for question, span in zip(data.questions[split], best, strict=True)
            ]
            for split, best in spans.items()
        }

    def score(self, data: Questions, predictions: Mapping[Split, list[Prediction]]) -> Mapping[Split, dict[str, float]]:
        """Means of `exact_match` and `f1` as SQuAD's script defines them."""
        scores: dict[Split, dict[str, float]] = {}
        for split, rows in predictions.items():
            pairs = [
                (row["prediction"], [answer.text for answer in question.answers])
                for row, question in zip(rows, data.questions[split], strict=True)
                if question.answers is not None
            ]
            if pairs:
                scores[split] = {
                    "exact_match": float(np.mean([squad_metrics.exact_match(*pair) for pair in pairs])),
                    "f1": float(np.mean([squad_metrics.f1(*pair) for pair in pairs])),
                }
        return scores

    def row(self, prediction: Prediction) -> Prediction:
        """`id` and `prediction`."""
        return {name: prediction[name] for name in ("id", "prediction")}

    def save(self, network: nn.Module, folder: Path, data: Questions) -> None:
        """Write the stock class, with `null_threshold` in its configuration; null: every question is answered."""
        assert isinstance(network, PreTrainedModel)
        network.config.null_threshold = self._null_threshold
        network.save_pretrained(folder)

    def baseline(self, data: Questions) -> float | None:
        """Score of empty answers: the share of test questions without an answer."""
        answered = [one.answers for one in data.questions[Split.TEST] if one.answers is not None]
        return sum(not answers for answers in answered) / len(answered) if answered else None


class PaperQuestionAnswering(ClassesOfTokens[Questions], QuestionAnswering):
    """Answers by tagged tokens, with token classification."""

    _labels: ClassVar[tuple[str, str]] = ("outside", "answer")

    def inputs(self, questions: Sequence[Question], source: EncoderSource) -> tuple[Features, int]:
        """An input for each question of a split, with a class for each token; and how many were truncated."""
        return tagged_inputs(questions, source)

    def _class_of(self, source: EncoderSource) -> Any:
        return AutoModelForTokenClassification

    def decode(
        self, data: Questions, features: Mapping[Split, Features], outputs: Mapping[Split, Outputs]
    ) -> Mapping[Split, list[Prediction]]:
        """The context from its first to its last tagged token, and the tagged and correct positions in the input."""
        return {
            split: [
                {
                    "id": question.id,
                    "prediction": tagged_text(question, row["offsets"], tagged := logits.argmax(axis=-1)),
                    "positions": np.flatnonzero(tagged).tolist(),
                    "answer": None if question.answers is None else np.flatnonzero(row["labels"]).tolist(),
                }
                for question, row, logits in zip(data.questions[split], features[split], answered, strict=True)
            ]
            for split, answered in outputs.items()
        }

    def score(self, data: Questions, predictions: Mapping[Split, list[Prediction]]) -> Mapping[Split, dict[str, float]]:
        """Mean `paper_f1`: F1 of token positions."""
        scores = {
            split: [
                squad_metrics.position_f1(row["positions"], row["answer"]) for row in rows if row["answer"] is not None
            ]
            for split, rows in predictions.items()
        }
        return {split: {"paper_f1": float(np.mean(of_split))} for split, of_split in scores.items() if of_split}


_OF_PROTOCOL: Mapping[str, type[QuestionAnswering]] = {"standard": QuestionAnswering, "paper": PaperQuestionAnswering}
