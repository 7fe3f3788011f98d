"""Targets that an objective makes of rows of a test's own."""

from typing import Any

import numpy as np

from toolkit.objectives import Draws, IntArray, Targets, Vocabulary, build

VOCABULARY = Vocabulary(size=1000, mask_id=4, pad_id=2, bos_id=1, eos_id=2, special_ids=(1, 2, 3))
"""The mask is not among the special ids: a tokenizer may have got it afterwards."""
BERT = {"mask_fraction": 0.8, "random_fraction": 0.1, "keep_fraction": 0.1}


def full_rows(num_rows: int = 64, num_columns: int = 1024) -> tuple[IntArray, IntArray]:
    """Tokens and segments of rows of ordinary tokens, each of one segment: (B, S)."""
    tokens_BS = np.random.default_rng(0).integers(5, 1000, (num_rows, num_columns)).astype(np.int32)
    return tokens_BS, np.ones_like(tokens_BS)


def targets_of(
    kind: str,
    tokens_BS: Any,
    segments_BS: Any,
    *,
    seed: int = 0,
    first: int = 0,
    vocabulary: Vocabulary = VOCABULARY,
    **settings: Any,
) -> Targets:
    """Targets of an objective of this kind in rows from sample position `first` on, (B, S), arrays or lists."""
    tokens_BS, segments_BS = np.asarray(tokens_BS, np.int32), np.asarray(segments_BS, np.int32)
    draws = Draws(seed, np.arange(first, first + len(tokens_BS)), num_columns=tokens_BS.shape[1])
    return build(kind, settings, vocabulary).build(tokens_BS, segments_BS, draws)
