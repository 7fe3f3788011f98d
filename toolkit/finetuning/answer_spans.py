"""Spans of a context that answer a question: their labels, the best one of all windows, and the null threshold."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_MAPPING,
    PretrainedConfig,
)

from toolkit.finetuning.formats.squad import Question
from toolkit.finetuning.metrics import squad_metrics
from toolkit.finetuning.settings import Split
from toolkit.finetuning.task import Outputs
from toolkit.finetuning.trainer import Features
from toolkit.finetuning.windows import Window


@dataclass(frozen=True, slots=True)
class BestSpan:
    """The best span of a context, without blanks around it, its score, and the score of "no answer"."""

    text: str
    score: float
    null_score: float


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


def window_label(window: Window, question: Question) -> tuple[int, int]:
    """First and last token of the first answer that the window holds whole, else its null position."""
    return next(_spans(window, question), (window.null_position, window.null_position))


def _spans(window: Window, question: Question) -> Iterator[tuple[int, int]]:
    for answer in question.answers:
        span = window.span_of(answer.start, answer.end)
        if span is not None:
            yield span


def choose_threshold(
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


def answer_text(span: BestSpan, threshold: float | None) -> str:
    """The span's text, or none above the threshold."""
    return "" if threshold is not None and span.null_score - span.score > threshold else span.text


def _first(model_class: Any) -> Any:
    """Some kinds of encoders have several classes."""
    return model_class[0] if isinstance(model_class, tuple) else model_class
