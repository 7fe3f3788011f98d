"""Answers in a context: their labels, and their decoding from a network's outputs.

`standard`: spans in windows, the best one over all windows, and the null threshold. `paper`: tagged tokens of
"Question: ..." and "Context: ...", with the end-of-text token appended as a string and no special tokens, the context
truncated; two classes for each token, 1 on the tokens of the first answer.
"""

import itertools
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

from toolkit.finetuning.encoder_source import EncoderSource
from toolkit.finetuning.inputs import check_tells_offsets, input_row, paper_length
from toolkit.finetuning.qa import squad_metrics
from toolkit.finetuning.qa.squad import Question
from toolkit.finetuning.qa.windows import AT_ONCE, Window, context_offsets
from toolkit.finetuning.settings import Split
from toolkit.finetuning.task import Outputs
from toolkit.finetuning.trainer import Features


@dataclass(frozen=True, slots=True)
class BestSpan:
    """The best span of a context, without surrounding blanks, its score, and the score of "no answer"."""

    text: str
    score: float
    null_score: float


def has_question_answering(config: PretrainedConfig) -> bool:
    """True if transformers has a question-answering class that finds the weights in an encoder's folder."""
    kind = type(config)
    if kind not in MODEL_FOR_QUESTION_ANSWERING_MAPPING or kind not in MODEL_MAPPING:
        return False
    classes: Iterator[Any] = (mapping[kind] for mapping in (MODEL_FOR_QUESTION_ANSWERING_MAPPING, MODEL_MAPPING))
    # The first class, if a model type has several.
    prefixes = {(one[0] if isinstance(one, tuple) else one).base_model_prefix for one in classes}
    return len(prefixes) == 1


def best_spans(
    questions: Sequence[Question], features: Features, outputs: Outputs, *, max_length: int
) -> list[BestSpan]:
    """The best span of each question over its windows, from start and end logits (S, 2) of each window."""
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
    """Text and score (start logit + end logit) of the best span of a window; ("", -inf) if it has none."""
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
    first, last = (int(tokens[place]) for place in chosen)
    return text_between(context[: window.end], window.offsets, first, last), best


def text_between(context: str, offsets: npt.NDArray[np.int32], first: int, last: int) -> str:
    """The context from one token to another, without surrounding blanks; `offsets` as in `Window`.

    Normalizing tokenizers leave characters out, such as combining marks: non-blank characters right after the last
    token are part of the answer, up to the beginning of the next token.
    """
    end, begins = int(offsets[last, 1]), offsets[:, 0]
    gap = context[end : min([*begins[begins >= end].tolist(), len(context)])]
    joined = "".join(itertools.takewhile(lambda character: not character.isspace(), gap))
    return (context[offsets[first, 0] : end] + joined).strip()


def window_label(window: Window, question: Question) -> tuple[int, int]:
    """First and last token of the first answer that the window contains completely, else its null position."""
    spans = (window.span_of(answer.start, answer.end) for answer in question.answers or ())
    return next(filter(None, spans), (window.null_position, window.null_position))


def choose_threshold(
    questions: Mapping[Split, Sequence[Question]], validation: Sequence[BestSpan] | None
) -> float | None:
    """The best threshold; None (every question is answered) if all training and validation questions have answers."""
    learnt = [*questions[Split.TRAIN], *questions.get(Split.VALIDATION, ())]
    if all(question.answers for question in learnt):
        return None
    if validation is None:
        return 0.0
    answers = [[answer.text for answer in question.answers or ()] for question in questions[Split.VALIDATION]]
    return squad_metrics.best_threshold(
        np.array([span.null_score - span.score for span in validation]),
        [squad_metrics.f1(span.text, texts) for span, texts in zip(validation, answers, strict=True)],
        [squad_metrics.f1("", texts) for texts in answers],
    )


def answer_text(span: BestSpan, threshold: float | None) -> str:
    """The span's text, or "" above the threshold."""
    return "" if threshold is not None and span.null_score - span.score > threshold else span.text


def tagged_inputs(questions: Sequence[Question], source: EncoderSource) -> tuple[Features, int]:
    """Inputs of questions, with a class for each token, and how many were truncated."""
    check_tells_offsets(source)
    features: list[dict[str, Any]] = []
    num_cut = 0
    for start in range(0, len(questions), AT_ONCE):
        some = questions[start : start + AT_ONCE]
        encoded = source.tokenizer(
            [f"Question: {question.question.strip()}\nContext: " for question in some],
            [question.context.strip() + (source.tokenizer.eos_token or "") for question in some],
            add_special_tokens=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        longest = paper_length(source)
        for row, question in enumerate(some):
            columns = input_row(encoded, row, source, longest=longest)
            offsets = context_offsets(encoded, row, longest=longest)
            labels = np.zeros(len(offsets), np.int64)
            labels[answer_positions(offsets, question)] = 1
            features.append({**columns, "labels": labels.tolist(), "offsets": offsets})
            num_cut += len(encoded["input_ids"][row]) > longest
    return features, num_cut


def answer_positions(offsets: npt.NDArray[np.int32], question: Question) -> slice:
    """Positions in an input of those tokens of the first answer that were not truncated.

    `offsets`, (S, 2), are each token's characters in the stripped context; -1 for the question's tokens.
    """
    tokens = np.flatnonzero(offsets[:, 0] >= 0)
    if not question.answers or len(tokens) == 0:
        return slice(0)
    num_stripped = len(question.context) - len(question.context.lstrip())
    answer = question.answers[0]
    start, end = answer.start - num_stripped, answer.end - num_stripped
    begins, ends = offsets[tokens, 0], offsets[tokens, 1]
    if begins[0] > end or ends[-1] < start:
        return slice(0)
    # The last token that begins at or before the answer, to the first that ends at or after its end.
    first = max(0, int((begins <= start).sum()) - 1)
    last = min(len(tokens) - 1, int((ends < end).sum()))
    return slice(int(tokens[first]), int(tokens[last]) + 1)


def tagged_text(question: Question, offsets: npt.NDArray[np.int32], tagged: npt.NDArray[np.int64]) -> str:
    """The context from its first to its last tagged token."""
    inside = np.flatnonzero((tagged == 1) & (offsets[:, 0] >= 0))
    if len(inside) == 0:
        return ""
    # Truncated text is not part of an answer.
    context = question.context.strip()[: offsets[:, 1].max()]
    return text_between(context, offsets, int(inside[0]), int(inside[-1]))
