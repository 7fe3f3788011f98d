"""Types that all packages share.

Letters at the end of array names are shapes: B rows in a micro-batch, S positions in a row, T = B x S, N target tokens,
G rows in a step. `toolkit.model` has those of the model.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.integer]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]


class AttentionKind(StrEnum):
    """Positions of its own segment that a position may look at."""

    CAUSAL = "causal"
    BIDIRECTIONAL = "bidirectional"


@dataclass(frozen=True)
class Vocabulary:
    """The ids an objective may need to know.

    `size` counts every id, the mask token included. `special_ids` are the ids the tokenizer declares special,
    ascending; an objective that hides tokens leaves them alone.
    """

    size: int
    mask_id: int | None
    pad_id: int
    bos_id: int | None
    eos_id: int | None
    special_ids: tuple[int, ...]


@dataclass(frozen=True)
class Targets:
    """A supervised problem: inputs of shape (B, S), and what to predict at N of its positions.

    `positions_N` are flat positions in the micro-batch (row * S + column), ascending and unique; `labels_N` are the
    token ids expected there. `weights_N`, finite and not negative, say what each counts in the mean; None: all alike.
    """

    input_ids_BS: IntArray
    positions_N: IntArray
    labels_N: IntArray
    weights_N: FloatArray | None = None
