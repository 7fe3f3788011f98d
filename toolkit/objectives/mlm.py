"""Masked language modeling: a hidden token is predicted at its own position, or at the one before.

`span` and `diffusion` also make targets with `hide`: they differ in how tokens are chosen.
"""

import copy
import math
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, Field, Tag, model_validator

from toolkit.core.draws import Draws
from toolkit.core.errors import SettingsError
from toolkit.core.settings import NUMBER, TABLE, Settings, table_or
from toolkit.core.types import AttentionKind, BoolArray, FloatArray, IntArray, Targets, Vocabulary, WordBoundaries
from toolkit.objectives.ramps import MaskRatioRamp


class MlmSettings(Settings):
    """Share of tokens that are hidden, and what replaces them."""

    mask_ratio: Annotated[
        Annotated[float, Field(gt=0, le=1), Tag(NUMBER)] | Annotated[MaskRatioRamp, Tag(TABLE)],
        table_or(NUMBER),
    ] = 0.4
    """Probability that an ordinary token becomes a target (0.4 is 40 %), or a table: a ramp over each phase of this
    objective."""
    unit: Literal["token", "word"] = "token"
    """Hide single tokens, or all tokens of a word together."""
    word_rule: int = Field(default=1, ge=1)
    """Version of the rule that finds words; a run keeps the one it was started with."""
    min_targets: int = Field(default=0, ge=0)
    """Minimum targets per segment: if fewer are drawn, the ordinary tokens (or words) with the next smallest draws are
    added."""
    mask_fraction: float = Field(default=1.0, ge=0, le=1)
    """Share of the targets replaced by the mask token; the three shares sum to 1 (BERT: 0.8, 0.1, 0.1)."""
    random_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the targets replaced by a random ordinary token."""
    keep_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the targets left as they are."""

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        total = math.fsum((self.mask_fraction, self.random_fraction, self.keep_fraction))
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            raise ValueError(
                f"mask_fraction {self.mask_fraction} + random_fraction {self.random_fraction} + keep_fraction "
                f"{self.keep_fraction} = {total:g}: expected a sum of 1. Set all three, for "
                f"example to 0.8, 0.1 and 0.1."
            )
        return self

    @property
    def targets_per_position(self) -> float:
        """Expected number by the settings; for a ramp, its mean."""
        return self.mask_ratio.mean if isinstance(self.mask_ratio, MaskRatioRamp) else self.mask_ratio


class MaskedLanguageModeling:
    """Each ordinary token, or word of such tokens, becomes a target independently; padding and special tokens never do.

    The label is the original token. In its place, the input has the mask token, a random ordinary token or the token
    itself, with the shares in the settings.

    Random streams are named after the kind. Their names are part of a run's identity: another name gives other masks.
    """

    name: ClassVar[str] = "mlm"
    attention: ClassVar[AttentionKind] = AttentionKind.BIDIRECTIONAL
    Settings: ClassVar[type[BaseModel]] = MlmSettings
    label_offset: ClassVar[int] = 0
    """Distance from the position where a token is predicted to its own, 0 or 1."""
    treats_words_by_token: ClassVar[bool] = True
    """Whether each token of a hidden word is masked, replaced or kept on its own, as in BERT's whole word masking."""

    def __init__(self, settings: MlmSettings, vocabulary: Vocabulary) -> None:
        """Raises SettingsError if tokens are to be masked and the vocabulary has no mask token."""
        if settings.mask_fraction > 0 and vocabulary.mask_id is None:
            instead = ", or set mask_fraction to 0 and random_fraction to 1"
            raise SettingsError(
                f"the objective {self.name} replaces {settings.mask_fraction:.0%} of its targets with a mask token, "
                f"but the corpus's tokenizer has none. Prepare the corpus with `toolkit preprocess --mask-token "
                f"token:TEXT` (or id:N){instead if 'mask_fraction' in self.Settings.model_fields else ''}."
            )
        self._settings = settings
        self._words = _find_words(settings, vocabulary) if settings.unit == "word" else None
        ratio = settings.mask_ratio
        self._mask_ratio = ratio.stop if isinstance(ratio, MaskRatioRamp) else ratio
        # Without a mask token the mask share is 0 and the id is never written.
        self._mask_id = -1 if vocabulary.mask_id is None else vocabulary.mask_id
        self._is_ordinary_V = np.ones(vocabulary.size, dtype=bool)
        self._is_ordinary_V[list(vocabulary.special_ids)] = False
        if vocabulary.mask_id is not None:
            self._is_ordinary_V[vocabulary.mask_id] = False
        self._ordinary_ids = np.flatnonzero(self._is_ordinary_V)

    def at(self, progress: float) -> Self:
        """The objective at `progress` in the phase, see `Objective`; evaluation uses the mask ratio of its end."""
        ratio = self._settings.mask_ratio
        if not isinstance(ratio, MaskRatioRamp):
            return self
        there = copy.copy(self)
        there._mask_ratio = ratio.at(progress)
        return there

    def build(self, tokens_BS: IntArray, segments_BS: IntArray, draws: Draws) -> Targets:
        """Draw the targets and hide them; see `Objective.build`."""
        return self.hide(tokens_BS, segments_BS, draws.uniform_BS(f"{self.name}.choice"), draws)

    def hide(self, tokens_BS: IntArray, segments_BS: IntArray, choice_BS: FloatArray, draws: Draws) -> Targets:
        """Hide the ordinary tokens whose choice, uniform on [0, 1), is below the mask ratio; the choice also determines
        what replaces them, so that tokens with the same choice are treated alike.
        """
        if self._words is not None:
            first_BS = self._words.first_BS(tokens_BS, segments_BS)
            choice_BS = choice_BS.reshape(-1).take(first_BS)
        is_target_BS = choice_BS < self._mask_ratio
        is_ordinary_BS = self._is_ordinary_V.take(tokens_BS)
        is_ordinary_BS &= segments_BS != 0
        if self.label_offset:
            # No position before the first token of a segment could predict it.
            is_ordinary_BS[:, :1] = False
            is_ordinary_BS[:, 1:] &= segments_BS[:, 1:] == segments_BS[:, :-1]
        is_target_BS &= is_ordinary_BS
        if self._settings.min_targets:
            _add_closest(is_target_BS, is_ordinary_BS, choice_BS, segments_BS, at_least=self._settings.min_targets)
            if self._words is not None:
                is_target_BS |= np.isin(first_BS, first_BS[is_target_BS]) & is_ordinary_BS
        hidden_N = np.flatnonzero(is_target_BS)
        labels_N = tokens_BS.reshape(-1).take(hidden_N)
        input_ids_BS = tokens_BS.copy()
        inputs_T = input_ids_BS.reshape(-1)
        if self._settings.mask_fraction == 1:
            inputs_T[hidden_N] = self._mask_id
        else:
            self._replace(inputs_T, hidden_N, self._treatment(choice_BS, hidden_N, draws), draws)
        return Targets(input_ids_BS=input_ids_BS, positions_N=hidden_N - self.label_offset, labels_N=labels_N)

    def _treatment(self, choice_BS: FloatArray, hidden_N: IntArray, draws: Draws) -> FloatArray:
        """A uniform number on [0, 1) for each target, (N,)."""
        if self._words is not None and self.treats_words_by_token:
            return draws.uniform_BS(f"{self.name}.treatment").reshape(-1).take(hidden_N)
        choice_N = choice_BS.reshape(-1).take(hidden_N)
        # Below the ratio, choice / ratio is again uniform on [0, 1): no second draw is needed.
        share_N = choice_N / np.float32(self._mask_ratio)
        if self._settings.min_targets:
            is_added_N = ~(choice_N < self._mask_ratio)
            share_N[is_added_N] = draws.uniform_BS(f"{self.name}.treatment").reshape(-1).take(hidden_N[is_added_N])
        return share_N

    def _replace(self, inputs_T: IntArray, hidden_N: IntArray, share_N: FloatArray, draws: Draws) -> None:
        """Replace hidden tokens in `inputs_T`. The three treatments divide [0, 1) in this order: mask, random, keep."""
        mask_end = self._settings.mask_fraction
        random_end = mask_end + self._settings.random_fraction
        if mask_end > 0:
            inputs_T[hidden_N[share_N < mask_end]] = self._mask_id
        if random_end > mask_end:
            random_positions = hidden_N[(share_N >= mask_end) & (share_N < random_end)]
            drawn = draws.uniform_BS(f"{self.name}.replacement").reshape(-1).take(random_positions)
            # In float64, where drawn x size cannot round up to size.
            index = (drawn.astype(np.float64) * len(self._ordinary_ids)).astype(np.int64)
            inputs_T[random_positions] = self._ordinary_ids.take(index)


class MaskedNextTokenPrediction(MaskedLanguageModeling):
    """MLM that predicts a hidden token at the position before it, as a decoder's head predicts the next token.

    The first token of a segment is never hidden. LLM2Vec (arXiv 2404.05961), section 2.1.
    """

    name: ClassVar[str] = "mntp"
    label_offset: ClassVar[int] = 1


def _find_words(settings: MlmSettings, vocabulary: Vocabulary) -> WordBoundaries:
    if vocabulary.words is None:
        raise SettingsError(
            'unit = "word" needs to know which ids begin a word, and this vocabulary does not say. Use the vocabulary '
            'of a corpus, or set unit = "token".'
        )
    words = vocabulary.words()
    if words.rule != settings.word_rule:
        raise SettingsError(
            f"word_rule = {settings.word_rule} is not available: this version of the toolkit finds words by rule "
            f"{words.rule}. Leave word_rule out, or use the version that started the run."
        )
    return words


def _add_closest(
    is_target_BS: BoolArray,
    is_ordinary_BS: BoolArray,
    choice_BS: FloatArray,
    segments_BS: IntArray,
    *,
    at_least: int,
) -> None:
    """Top up, in place, segments with fewer than `at_least` targets with their ordinary tokens of the smallest draws.

    Drawn targets have the smallest draws of their segment, so they stay.
    """
    num_rows, num_columns = segments_BS.shape
    # Segment indices over the whole micro-batch; those of padding have no ordinary token.
    segment_T = (segments_BS + np.arange(num_rows)[:, None] * (num_columns + 1)).reshape(-1)
    num_segments = num_rows * (num_columns + 1)
    has_fewer = np.bincount(segment_T[is_target_BS.reshape(-1)], minlength=num_segments) < at_least
    candidates = np.flatnonzero(is_ordinary_BS.reshape(-1) & has_fewer[segment_T])
    segment_of = segment_T[candidates]
    # By segment, then by draw; the sort is stable, so that equal draws keep the order of their positions.
    order = np.lexsort((choice_BS.reshape(-1)[candidates], segment_of))
    counts = np.bincount(segment_of, minlength=num_segments)
    rank = np.arange(len(order)) - (np.cumsum(counts) - counts)[segment_of[order]]
    is_target_BS.reshape(-1)[candidates[order[rank < at_least]]] = True
