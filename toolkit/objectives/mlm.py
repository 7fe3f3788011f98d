"""Masked language modeling: hide a share of the tokens and predict what stood there."""

import math
from typing import ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from toolkit.core.draws import Draws
from toolkit.core.errors import SettingsError
from toolkit.core.settings import Settings
from toolkit.core.words import AttentionKind, IntArray, Targets, Vocabulary

__all__ = ["MaskedLanguageModeling", "MlmSettings"]

# Names of the random streams. They are part of a run's identity: another name gives other masks.
_CHOICE, _TREATMENT, _REPLACEMENT = "mlm.choice", "mlm.treatment", "mlm.replacement"


class MlmSettings(Settings):
    """How many tokens are hidden, and what stands in their place."""

    mask_ratio: float = Field(default=0.4, gt=0, le=1)
    """Probability with which each ordinary token becomes a target, above 0 and at most 1 (0.4 is 40 %)."""
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
                f"{self.keep_fraction} = {total:g}, and the three have to sum to 1. Set all that you change, for "
                f"example 0.8, 0.1 and 0.1."
            )
        return self


class MaskedLanguageModeling:
    """Each ordinary token becomes a target independently; padding and special tokens never do.

    The label is the original token. In its place the input carries the mask token, a random ordinary token or the
    token itself, by the shares in the settings.
    """

    name: ClassVar[str] = "mlm"
    attention: ClassVar[AttentionKind] = AttentionKind.BIDIRECTIONAL
    Settings: ClassVar[type[MlmSettings]] = MlmSettings

    def __init__(self, settings: MlmSettings, vocabulary: Vocabulary) -> None:
        """Raises SettingsError where tokens are to be masked and the vocabulary has no mask token."""
        if settings.mask_fraction > 0 and vocabulary.mask_id is None:
            raise SettingsError(
                f"the objective mlm puts a mask token in place of {settings.mask_fraction:.0%} of its targets, and the "
                f"corpus's tokenizer has none. Prepare the corpus with `toolkit preprocess --mask-token token:TEXT` "
                f"(or id:N), or set mask_fraction to 0 and random_fraction to 1."
            )
        self._settings = settings
        self._mask_id = vocabulary.mask_id
        self._is_ordinary_V = np.ones(vocabulary.size, dtype=bool)
        self._is_ordinary_V[list(vocabulary.special_ids)] = False
        if vocabulary.mask_id is not None:
            self._is_ordinary_V[vocabulary.mask_id] = False
        self._ordinary_ids = np.flatnonzero(self._is_ordinary_V)

    def build(self, tokens_BS: IntArray, segments_BS: IntArray, draws: Draws) -> Targets:
        """Draw the targets and hide them; see `Objective.build`."""
        is_target_BS = draws.uniform_BS(_CHOICE) < self._settings.mask_ratio
        is_target_BS &= self._is_ordinary_V.take(tokens_BS)
        is_target_BS &= segments_BS != 0
        positions_N = np.flatnonzero(is_target_BS)
        labels_N = tokens_BS.reshape(-1).take(positions_N)
        input_ids_BS = tokens_BS.copy()
        input_ids_BS.reshape(-1)[positions_N] = self._replacements(positions_N, labels_N, draws)
        return Targets(input_ids_BS=input_ids_BS, positions_N=positions_N, labels_N=labels_N)

    def _replacements(self, positions_N: IntArray, labels_N: IntArray, draws: Draws) -> IntArray | int:
        """What the input carries at the targets: one id for all, or one for each."""
        settings = self._settings
        if settings.mask_fraction == 1 and self._mask_id is not None:
            return self._mask_id
        treatment_N = draws.uniform_BS(_TREATMENT).reshape(-1).take(positions_N)
        replacements_N = labels_N.copy()
        # The shares lie one after another on [0, 1): mask, random, keep.
        is_random_N = treatment_N < settings.mask_fraction + settings.random_fraction
        if settings.random_fraction > 0:
            drawn_N = draws.uniform_BS(_REPLACEMENT).reshape(-1).take(positions_N)
            index_N = (drawn_N.astype(np.float64) * len(self._ordinary_ids)).astype(np.int64)
            replacements_N = np.where(is_random_N, self._ordinary_ids.take(index_N), replacements_N)
        if self._mask_id is not None:
            replacements_N[treatment_N < settings.mask_fraction] = self._mask_id
        return replacements_N
