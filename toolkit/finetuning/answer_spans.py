"""Answers by their first and last token (protocol `standard`).

Each token of a window scores as first and as last token of the answer; a special token stands for "no answer", which
is also the label of a window that does not hold the answer. Of all windows of a context the best span is taken, and the
lowest null score; the question is left unanswered where the null score exceeds the span's by more than a threshold.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_MAPPING,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from toolkit.finetuning.formats.squad import Question
from toolkit.finetuning.heads import load_network
from toolkit.finetuning.metrics import squad_metrics
from toolkit.finetuning.source import EncoderSource
from toolkit.finetuning.task import Outputs, Prediction, Split
from toolkit.finetuning.trainer import Features
from toolkit.finetuning.windows import Window, WindowBuilder

_LABELS = {0: "start", 1: "end"}


@dataclass(frozen=True, slots=True)
class BestSpan:
    """The best span of a context, without blanks around it, its score, and the score of "no answer"."""

    text: str
    score: float
    null_score: float


class AnswerSpans:
    """Start and end of an answer, over windows of its context.

    Args:
        overlap: tokens that neighbouring windows share.
        max_length: of a predicted answer, in tokens.
    """

    def __init__(self, *, overlap: int, max_length: int) -> None:
        self._overlap, self._max_length = overlap, max_length
        self._null_threshold: float | None = None

    def encode(self, questions: Sequence[Question], source: EncoderSource) -> tuple[Features, int]:
        """All windows of all questions, and how many questions were truncated.

        The label of a window is its first answer's start and end, and its length in tokens.
        """
        build = WindowBuilder(source, overlap=self._overlap)
        windows, num_cut = build(
            [question.question for question in questions], [question.context for question in questions]
        )
        features = [
            {
                **window.inputs,
                "labels": [*_label(window, question), len(window.offsets)],
                "of": number,
                "window": window,
            }
            for number, (question, group) in enumerate(zip(questions, windows, strict=True))
            for window in group
        ]
        return features, num_cut

    def network(self, source: EncoderSource) -> PreTrainedModel:
        """The stock class for question answering, or that for token classification with the labels start and end.

        Some stock classes, such as Llama's, keep their encoder under another name than the folder does and would go on
        with random weights; EuroBERT has none.
        """
        named = {"id2label": _LABELS, "label2id": {label: index for index, label in _LABELS.items()}}
        if has_question_answering(source.config):
            return load_network(AutoModelForQuestionAnswering, source, **named)
        return load_network(AutoModelForTokenClassification, source, **named)

    def logits(self, outputs: Any) -> torch.Tensor:
        """Start and end logits of each token, (B, S, 2), from either class."""
        if hasattr(outputs, "start_logits"):
            return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
        logits: torch.Tensor = outputs.logits
        return logits

    def collate_labels(self, labels: Sequence[Any], *, width: int) -> torch.Tensor:
        """Start, end and number of tokens, (B, 3)."""
        return torch.tensor(labels)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of start and end over the tokens of a window; padding takes no part."""
        is_padding_BS = torch.arange(logits.shape[1], device=logits.device) >= labels[:, 2:]
        masked = logits.masked_fill(is_padding_BS.unsqueeze(-1), torch.finfo(logits.dtype).min)
        start, end = (nn.functional.cross_entropy(masked[:, :, side], labels[:, side]) for side in (0, 1))
        return (start + end) / 2

    def num_targets(self, labels: torch.Tensor) -> int:
        """Windows."""
        return len(labels)

    def decode(
        self,
        questions: Mapping[Split, Sequence[Question]],
        features: Mapping[Split, Features],
        outputs: Mapping[Split, Outputs],
    ) -> dict[Split, list[Prediction]]:
        """The best span of each question, or "" above the threshold, which is the best on the validation split."""
        spans = {
            split: best_spans(questions[split], features[split], rows, max_length=self._max_length)
            for split, rows in outputs.items()
        }
        self._null_threshold = _choose_threshold(questions, spans.get(Split.VALIDATION))
        return {
            split: [
                {"id": question.id, "prediction": _text(span, self._null_threshold)}
                for question, span in zip(questions[split], best, strict=True)
            ]
            for split, best in spans.items()
        }

    def score(self, questions: Sequence[Question], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Mean of SQuAD's `exact_match` and `f1`."""
        pairs = [
            (row["prediction"], [answer.text for answer in question.answers])
            for row, question in zip(predictions, questions, strict=True)
        ]
        return {
            "exact_match": float(np.mean([squad_metrics.exact_match(*pair) for pair in pairs])),
            "f1": float(np.mean([squad_metrics.f1(*pair) for pair in pairs])),
        }

    def save(self, network: PreTrainedModel, folder: Path) -> None:
        """Write the stock class, with `null_threshold` in its configuration; null: every question is answered."""
        network.config.null_threshold = self._null_threshold
        network.save_pretrained(folder)


def has_question_answering(config: PretrainedConfig) -> bool:
    """Whether transformers has a question-answering class that finds the encoder's weights in an encoder's folder."""
    kind = type(config)
    if kind not in MODEL_FOR_QUESTION_ANSWERING_MAPPING or kind not in MODEL_MAPPING:
        return False
    prefixes = {
        _first(mapping[kind]).base_model_prefix for mapping in (MODEL_FOR_QUESTION_ANSWERING_MAPPING, MODEL_MAPPING)
    }
    return len(prefixes) == 1


def best_spans(
    questions: Sequence[Question], features: Features, outputs: Outputs, *, max_length: int
) -> list[BestSpan]:
    """The best span of each question over its windows, from start and end logits (S, 2) of each window.

    Args:
        questions: of a split.
        features: all windows of the split.
        outputs: logits of each window.
        max_length: of a span, in tokens.
    """
    best = [BestSpan("", -np.inf, np.inf)] * len(questions)
    for row, logits in zip(features, outputs, strict=True):
        window, number = row["window"], row["of"]
        text, score = best_span(window, questions[number].context, logits, max_length=max_length)
        known, null_score = best[number], float(logits[window.null_position].sum())
        best[number] = BestSpan(
            text if score > known.score else known.text,
            max(score, known.score),
            min(null_score, known.null_score),
        )
    return best


def best_span(window: Window, context: str, logits: npt.NDArray[np.float32], *, max_length: int) -> tuple[str, float]:
    """Text and score (start logit + end logit) of the best span of a window; ("", -inf) where it has none."""
    tokens = np.flatnonzero(window.offsets[:, 1] > 0)
    if len(tokens) == 0:
        return "", -np.inf
    characters = window.offsets[tokens]
    is_blank = [not context[begin:end].strip() for begin, end in characters.tolist()]
    scores = logits[tokens].astype(np.float64)
    scores[is_blank] = -np.inf
    best, chosen = -np.inf, (0, 0)
    for extra in range(min(max_length, len(tokens))):
        sums = scores[: len(tokens) - extra, 0] + scores[extra:, 1]
        start = int(sums.argmax())
        if sums[start] > best:
            best, chosen = float(sums[start]), (start, start + extra)
    return context[characters[chosen[0], 0] : characters[chosen[1], 1]].strip(), best


def _label(window: Window, question: Question) -> tuple[int, int]:
    """First and last token of the first answer that the window holds whole, else its null position."""
    return next(_spans(window, question), (window.null_position, window.null_position))


def _spans(window: Window, question: Question) -> Iterator[tuple[int, int]]:
    for answer in question.answers:
        span = window.span_of(answer.start, answer.end)
        if span is not None:
            yield span


def _choose_threshold(
    questions: Mapping[Split, Sequence[Question]], validation: Sequence[BestSpan] | None
) -> float | None:
    """None (every question is answered) where neither training nor validation has a question without an answer."""
    learnt = [*questions[Split.TRAIN], *questions.get(Split.VALIDATION, ())]
    if all(question.answers for question in learnt):
        return None
    if validation is None:
        return 0.0
    answers = [[answer.text for answer in question.answers] for question in questions[Split.VALIDATION]]
    return squad_metrics.best_threshold(
        np.array([span.null_score - span.score for span in validation]),
        [squad_metrics.f1(span.text, texts) for span, texts in zip(validation, answers, strict=True)],
        [squad_metrics.f1("", texts) for texts in answers],
    )


def _text(span: BestSpan, threshold: float | None) -> str:
    return "" if threshold is not None and span.null_score - span.score > threshold else span.text


def _first(model_class: Any) -> Any:
    """Some kinds of encoders have several classes."""
    return model_class[0] if isinstance(model_class, tuple) else model_class
