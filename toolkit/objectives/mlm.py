"""Masked language modeling: hide a share of the tokens and predict them."""

import math
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from toolkit.core.draws import Draws
from toolkit.core.errors import SettingsError
from toolkit.core.settings import Settings
from toolkit.core.types import AttentionKind, IntArray, Targets, Vocabulary

# Names of the random streams. They are part of a run's identity: another name gives other masks.
_CHOICE, _REPLACEMENT = "mlm.choice", "mlm.replacement"


class MlmSettings(Settings):
    """How many tokens are hidden, and what replaces them."""

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
                f"{self.keep_fraction} = {total:g}: expected a sum of 1. Set all three, for "
                f"example to 0.8, 0.1 and 0.1."
            )
        return self


class MaskedLanguageModeling:
    """Each ordinary token becomes a target independently; padding and special tokens never do.

    The label is the original token. The input has the mask token, a random ordinary token or the token itself in its
    place, by the shares in the settings.
    """

    name: ClassVar[str] = "mlm"
    attention: ClassVar[AttentionKind] = AttentionKind.BIDIRECTIONAL
    Settings: ClassVar[type[MlmSettings]] = MlmSettings

    def __init__(self, settings: MlmSettings, vocabulary: Vocabulary) -> None:
        """Raises SettingsError if tokens are to be masked and the vocabulary has no mask token."""
        if settings.mask_fraction > 0 and vocabulary.mask_id is None:
            raise SettingsError(
                f"the objective mlm replaces {settings.mask_fraction:.0%} of its targets with a mask token, but the "
                f"corpus's tokenizer has none. Prepare the corpus with `toolkit preprocess --mask-token token:TEXT` "
                f"(or id:N), or set mask_fraction to 0 and random_fraction to 1."
            )
        self._settings = settings
        # Without a mask token the mask share is 0 and the id is never written.
        self._mask_id = -1 if vocabulary.mask_id is None else vocabulary.mask_id
        self._is_ordinary_V = np.ones(vocabulary.size, dtype=bool)
        self._is_ordinary_V[list(vocabulary.special_ids)] = False
        if vocabulary.mask_id is not None:
            self._is_ordinary_V[vocabulary.mask_id] = False
        self._ordinary_ids = np.flatnonzero(self._is_ordinary_V)

    def build(self, tokens_BS: IntArray, segments_BS: IntArray, draws: Draws) -> Targets:
        """Draw the targets and hide them; see `Objective.build`."""
        choice_BS = draws.uniform_BS(_CHOICE)
        is_target_BS = choice_BS < self._settings.mask_ratio
        is_target_BS &= self._is_ordinary_V.take(tokens_BS)
        is_target_BS &= segments_BS != 0
        positions_N = np.flatnonzero(is_target_BS)
        labels_N = tokens_BS.reshape(-1).take(positions_N)
        input_ids_BS = tokens_BS.copy()
        inputs_T = input_ids_BS.reshape(-1)
        if self._settings.mask_fraction == 1:
            inputs_T[positions_N] = self._mask_id
        else:
            # Below the ratio, choice / ratio is again uniform on [0, 1): no second draw is needed.
            share_N = choice_BS.reshape(-1).take(positions_N) / np.float32(self._settings.mask_ratio)
            self._replace(inputs_T, positions_N, share_N, draws)
        return Targets(input_ids_BS=input_ids_BS, positions_N=positions_N, labels_N=labels_N)

    def _replace(
        self, inputs_T: IntArray, positions_N: IntArray, share_N: npt.NDArray[np.float32], draws: Draws
    ) -> None:
        """Write into `inputs_T`. The three treatments lie one after another on [0, 1): mask, random, keep."""
        mask_end = self._settings.mask_fraction
        random_end = mask_end + self._settings.random_fraction
        if mask_end > 0:
            inputs_T[positions_N[share_N < mask_end]] = self._mask_id
        if random_end > mask_end:
            random_positions = positions_N[(share_N >= mask_end) & (share_N < random_end)]
            drawn = draws.uniform_BS(_REPLACEMENT).reshape(-1).take(random_positions)
            # In float64, where drawn x size cannot round up to size.
            index = (drawn.astype(np.float64) * len(self._ordinary_ids)).astype(np.int64)
            inputs_T[random_positions] = self._ordinary_ids.take(index)
