"""Span masking: MLM that hides neighboring tokens together (SpanBERT, arXiv 1907.10529, section 3.1)."""

import math
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field

from toolkit.core.draws import Draws
from toolkit.core.types import IntArray, Targets, Vocabulary
from toolkit.objectives.mlm import MaskedLanguageModeling, MlmSettings


class SpanSettings(MlmSettings):
    """Settings of `mlm`, and of the distribution of span lengths."""

    geometric_p: float = Field(default=0.2, gt=0, le=1)
    """A span is n tokens long with a probability proportional to (1 - geometric_p)^n (SpanBERT: 0.2)."""
    max_length: int = Field(default=10, ge=1)
    """Length of the longest span (SpanBERT: 10, which makes the mean 3.8)."""


class SpanMasking(MaskedLanguageModeling):
    """Spans of ordinary tokens become targets; all tokens of a span are treated alike.

    Gaps and spans alternate along a row, a renewal process that is stationary from the first column on: each ordinary
    token is hidden with a probability of exactly the mask ratio. Segment ends and special tokens split a span in two.
    """

    name: ClassVar[str] = "span"
    treats_words_by_token: ClassVar[bool] = False
    Settings: ClassVar[type[BaseModel]] = SpanSettings

    def __init__(self, settings: SpanSettings, vocabulary: Vocabulary) -> None:
        """Raises SettingsError if tokens are to be masked and the vocabulary has no mask token."""
        super().__init__(settings, vocabulary)
        weights = np.cumprod([1.0, *[1 - settings.geometric_p] * (settings.max_length - 1)])
        self._length_at_least = np.cumsum(weights[::-1])[::-1] / weights.sum()
        """Probability that a span has at least 1, 2, ... tokens."""

    def build(self, tokens_BS: IntArray, segments_BS: IntArray, draws: Draws) -> Targets:
        """Draw the spans and hide them; see `Objective.build`."""
        num_rows, num_columns = tokens_BS.shape
        ratio = np.float32(self._mask_ratio)
        lengths = self._stretches(draws, num_columns)
        choices = np.ones(lengths.shape, dtype=np.float32)
        shows_mask_alone, num_spans = self._settings.mask_fraction == 1, lengths.shape[1] // 2
        choices[:, 1::2] = 0 if shows_mask_alone else draws.uniform_BS("span.shown")[:, :num_spans] * ratio
        choice_BS = np.repeat(choices.reshape(-1), lengths.reshape(-1)).reshape(num_rows, num_columns)
        if self._settings.min_targets:
            closeness_BS = ratio + (1 - ratio) * draws.uniform_BS("span.choice")
            choice_BS = np.where(choice_BS < ratio, choice_BS, closeness_BS)
        return self.hide(tokens_BS, segments_BS, choice_BS, draws)

    def _stretches(self, draws: Draws, num_columns: int) -> IntArray:
        """Alternating lengths of gaps and spans, gap first, that fill each row: (B, an even number)."""
        mean_length = self._length_at_least.sum()
        mean_gap = mean_length * (1 - self._mask_ratio) / self._mask_ratio
        gap_BS, length_BS = draws.uniform_BS("span.gap"), draws.uniform_BS("span.length")
        # Gap lengths, from 0 on, are geometric too. Tables of products, since logarithms may differ in the last bit
        # from machine to machine.
        gap_at_least = np.cumprod(np.full(num_columns, mean_gap / (1 + mean_gap)))
        first_gap = 1 - (1 - self._mask_ratio) * np.concatenate([[1.0], gap_at_least])
        rest_below = np.cumsum(self._length_at_least) / mean_length
        # First try as many as nearly every row needs; those past the end of a row change nothing.
        for count in (math.ceil(1.3 * num_columns / (mean_length + mean_gap)) + 10, num_columns):
            gaps = np.searchsorted(1 - gap_at_least, gap_BS[:, :count], side="right")
            lengths = 1 + np.searchsorted(1 - self._length_at_least[1:], length_BS[:, :count], side="right")
            # The first column may be anywhere in a gap or a span.
            gaps[:, :1] = np.searchsorted(first_gap, gap_BS[:, :1], side="right")
            rest = 1 + np.searchsorted(rest_below[:-1], length_BS[:, :1], side="right")
            lengths[:, :1] = np.where(gaps[:, :1] == 0, rest, lengths[:, :1])
            ends = np.zeros((len(gaps), 2 * gaps.shape[1]), dtype=np.int64)
            ends[:, 0::2], ends[:, 1::2] = gaps, lengths
            np.minimum(np.cumsum(ends, axis=1), num_columns, out=ends)
            if (ends[:, -1:] == num_columns).all():
                break
        stretches: IntArray = np.diff(ends, axis=1, prepend=0)
        return stretches
