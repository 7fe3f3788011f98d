"""Causal language modeling: every position predicts the token after it."""

from typing import ClassVar

import numpy as np

from toolkit.core.draws import Draws
from toolkit.core.settings import Settings
from toolkit.core.types import AttentionKind, IntArray, Targets, Vocabulary


class ClmSettings(Settings):
    """Nothing to set."""


class CausalLanguageModeling:
    """The label of position p is token p + 1 of the same segment; the last position of a segment has none."""

    name: ClassVar[str] = "clm"
    attention: ClassVar[AttentionKind] = AttentionKind.CAUSAL
    Settings: ClassVar[type[ClmSettings]] = ClmSettings

    def __init__(self, settings: ClmSettings, vocabulary: Vocabulary) -> None:
        """Uses neither argument."""

    def build(self, tokens_BS: IntArray, segments_BS: IntArray, draws: Draws) -> Targets:
        """Inputs are the tokens unchanged (the same array); see `Objective.build`."""
        has_next_BS = np.zeros(tokens_BS.shape, dtype=bool)
        now, following = segments_BS[:, :-1], segments_BS[:, 1:]
        np.equal(now, following, out=has_next_BS[:, :-1])
        has_next_BS[:, :-1] &= now != 0
        positions_N = np.flatnonzero(has_next_BS)
        # The last column is never a target, so the next flat position is the next column of the same row.
        labels_N = tokens_BS.reshape(-1).take(positions_N + 1)
        return Targets(input_ids_BS=tokens_BS, positions_N=positions_N, labels_N=labels_N)
