"""Inputs whose tokens are tagged as an answer's or not, as the paper's authors do it.

"Question: ..." and "Context: ..." with the end-of-text token as a string behind it and no special tokens, the context
truncated; two classes for each token, 1 on the tokens of the first answer.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from toolkit.finetuning.formats.squad import Question
from toolkit.finetuning.inputs import paper_length
from toolkit.finetuning.source import EncoderSource
from toolkit.finetuning.trainer import Features
from toolkit.finetuning.windows import check_fast

_AT_ONCE = 1000


def tagged_inputs(questions: Sequence[Question], source: EncoderSource) -> tuple[Features, int]:
    """One input for each question, with a class for each of its tokens; also returns how many were truncated."""
    check_fast(source)
    features: list[dict[str, Any]] = []
    num_cut = 0
    for start in range(0, len(questions), _AT_ONCE):
        some = questions[start : start + _AT_ONCE]
        encoded = source.tokenizer(
            [f"Question: {question.question.strip()}\nContext: " for question in some],
            [question.context.strip() + (source.tokenizer.eos_token or "") for question in some],
            add_special_tokens=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        longest = paper_length(source)
        for row, question in enumerate(some):
            columns = {name: list(encoded[name][row][:longest]) for name in encoded if name in source.accepted}
            texts = encoded.sequence_ids(row)[:longest]
            offsets = np.full((len(texts), 2), -1, np.int32)
            of_context = np.array([text == 1 for text in texts])
            offsets[of_context] = np.array(encoded["offset_mapping"][row][:longest], np.int32)[of_context]
            labels = np.zeros(len(texts), np.int64)
            labels[answer_positions(offsets, question)] = 1
            features.append({**columns, "labels": labels.tolist(), "offsets": offsets})
            num_cut += len(encoded["input_ids"][row]) > longest
    return features, num_cut


def answer_positions(offsets: npt.NDArray[np.int32], question: Question) -> slice:
    """Positions of the first answer's tokens in an input, as far as they were not truncated.

    Args:
        offsets: (S, 2), the characters of the stripped context that a token stands for; -1 for the question's.
        question: with its answers.
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
    # The last token that begins at or before the answer, to the first that ends at or behind its end.
    first = max(0, int((begins <= start).sum()) - 1)
    last = min(len(tokens) - 1, int((ends < end).sum()))
    return slice(int(tokens[first]), int(tokens[last]) + 1)


def tagged_text(question: Question, offsets: npt.NDArray[np.int32], tagged: npt.NDArray[np.int64]) -> str:
    """The context from its first to its last tagged token."""
    inside = offsets[(tagged == 1) & (offsets[:, 0] >= 0)]
    return question.context.strip()[inside[0, 0] : inside[-1, 1]].strip() if len(inside) else ""
