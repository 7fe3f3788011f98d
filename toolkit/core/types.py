"""Types that all packages share.

Letters at the end of array names are shapes: B rows in a micro-batch, S positions in a row, T = B x S, N target tokens,
G rows in a step. `toolkit.model` lists those of the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator

from toolkit.core.files import is_inner_name

IntArray = npt.NDArray[np.integer]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]


def _inner_name(name: str) -> str:
    if not is_inner_name(name):
        raise ValueError("expected the printable name of a file inside the folder")
    return name


FileName = Annotated[str, AfterValidator(_inner_name)]
"""Name of a file as a manifest gives it, relative to the manifest's folder; see `is_inner_name`."""


class AttentionKind(StrEnum):
    """Which positions of its segment a position attends to."""

    CAUSAL = "causal"
    BIDIRECTIONAL = "bidirectional"


@dataclass(frozen=True, eq=False)
class WordBoundaries:
    """Word boundaries by id: ids that begin a word whatever precedes them, and ids that end one, (V,) each.

    Special ids do both. `rule` is the version of the rule that determines them; see `tokenization.word_boundaries`.
    """

    begins_V: BoolArray
    ends_V: BoolArray
    rule: int = 1

    def first_BS(self, tokens_BS: IntArray, segments_BS: IntArray) -> IntArray:
        """Flat position of the first token of each token's word, (B, S); no word crosses a row or a segment."""
        is_first_BS = self.begins_V.take(tokens_BS)
        is_first_BS[:, :1] = True
        is_first_BS[:, 1:] |= self.ends_V.take(tokens_BS[:, :-1]) | (segments_BS[:, 1:] != segments_BS[:, :-1])
        flat_T = np.where(is_first_BS.reshape(-1), np.arange(is_first_BS.size), 0)
        return np.maximum.accumulate(flat_T).reshape(tokens_BS.shape)


@dataclass(frozen=True)
class Vocabulary:
    """The ids an objective may need to know.

    `size` counts every id, the mask token included. `special_ids` are the ids the tokenizer declares special,
    ascending; an objective that hides tokens never hides these. `words` returns the word boundaries and may read the
    tokenizer; None if unknown.
    """

    size: int
    mask_id: int | None
    pad_id: int
    bos_id: int | None
    eos_id: int | None
    special_ids: tuple[int, ...]
    words: Callable[[], WordBoundaries] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def by_role(cls, ids: Mapping[str, int | None], **more: Any) -> "Vocabulary":
        """Vocabulary from a tokenizer's ids by role; padding is the pad id, else the eos id, else 0."""
        pads = (ids["pad"], ids["eos"], 0)
        pad_id = next(pad_id for pad_id in pads if pad_id is not None)
        return cls(mask_id=ids["mask"], pad_id=pad_id, bos_id=ids["bos"], eos_id=ids["eos"], **more)


@dataclass(frozen=True)
class Targets:
    """A supervised problem: inputs of shape (B, S), and what to predict at N of their positions.

    `positions_N` are flat positions in the micro-batch (row * S + column), ascending and unique; `labels_N` are the
    token ids expected there. `weights_N`, finite and nonnegative, are their weights in the mean; None: equal weights.
    """

    input_ids_BS: IntArray
    positions_N: IntArray
    labels_N: IntArray
    weights_N: FloatArray | None = None
