"""Masked diffusion: MLM with a mask ratio drawn per row, every target weighted by 1 / ratio.

The weighted cross-entropy bounds the log-likelihood (MDLM, arXiv 2406.07524; LLaDA, arXiv 2502.09992, section 2.1).
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field

from toolkit.core.draws import Draws
from toolkit.core.settings import Settings
from toolkit.core.types import IntArray, Targets, Vocabulary
from toolkit.objectives.mlm import MaskedLanguageModeling, MlmSettings


class DiffusionSettings(Settings):
    """Ratios that rows draw."""

    min_ratio: float = Field(default=0.001, gt=0, lt=1)
    """Each row draws its mask ratio uniformly between this and 1; a target weighs 1 / ratio, at most 1 / min_ratio."""

    @property
    def targets_per_position(self) -> float:
        """The mean ratio."""
        return (self.min_ratio + 1) / 2


class MaskedDiffusion(MaskedLanguageModeling):
    """Each ordinary token of a row becomes a target independently, with a probability drawn per row."""

    name: ClassVar[str] = "diffusion"
    Settings: ClassVar[type[BaseModel]] = DiffusionSettings

    def __init__(self, settings: DiffusionSettings, vocabulary: Vocabulary) -> None:
        """Raises SettingsError if the vocabulary has no mask token."""
        super().__init__(MlmSettings(mask_ratio=1.0), vocabulary)
        self._min_ratio = np.float32(settings.min_ratio)

    def build(self, tokens_BS: IntArray, segments_BS: IntArray, draws: Draws) -> Targets:
        """Draw the ratios and the targets; see `Objective.build`."""
        ratio_B1 = 1 - (1 - self._min_ratio) * draws.uniform_BS("diffusion.ratio")[:, :1]
        # `hide` compares choices with a mask ratio of 1: a quotient is below it if the draw is below the row's ratio.
        targets = self.hide(tokens_BS, segments_BS, draws.uniform_BS("diffusion.choice") / ratio_B1, draws)
        rows_N = targets.positions_N // max(tokens_BS.shape[1], 1)
        return replace(targets, weights_N=1 / ratio_B1[rows_N, 0])
