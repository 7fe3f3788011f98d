"""How many ranks share one copy of the model, and how a step's rows are dealt to the others."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from toolkit.core.errors import SettingsError
from toolkit.core.settings import Settings
from toolkit.core.text import counted

_LARGEST_DEFAULT_MICRO_BATCH = 12


class ParallelSettings(Settings):
    """Degrees of model parallelism; the ranks left over are data parallel."""

    tp: int = Field(1, gt=0)
    """Tensor parallel degree."""
    pp: int = Field(1, gt=0)
    """Pipeline parallel degree."""


@dataclass(frozen=True)
class BatchLayout:
    """How the G rows of a step are dealt: accumulation x data-parallel ranks x micro-batch rows."""

    global_batch_rows: int
    micro_batch_rows: int
    data_parallel: int

    @property
    def accumulation(self) -> int:
        """Micro-batches that one rank runs in a step."""
        return self.global_batch_rows // (self.micro_batch_rows * self.data_parallel)

    def describe(self) -> str:
        """The deal in words."""
        return (
            f"{counted(self.global_batch_rows, 'row')} a step = {self.micro_batch_rows} a micro-batch x "
            f"{counted(self.accumulation, 'micro-batch', 'micro-batches')} x {counted(self.data_parallel, 'rank')}"
        )

    def row_numbers(self, rank: int) -> npt.NDArray[np.int64]:
        """Rows of the step, numbered 0..G-1, that `rank` gets: (accumulation, micro_batch_rows)."""
        return self._dealt()[:, rank]

    def in_step_order(self, per_rank: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Undo the dealing: (ranks, rows of a rank, K), as ranks hold them, to (G, K) in the order of the step."""
        dealt = per_rank.reshape(self.data_parallel, self.accumulation, self.micro_batch_rows, -1)
        return dealt.transpose(1, 0, 2, 3).reshape(self.global_batch_rows, -1)

    def _dealt(self) -> npt.NDArray[np.int64]:
        shape = (self.accumulation, self.data_parallel, self.micro_batch_rows)
        return np.arange(self.global_batch_rows, dtype=np.int64).reshape(shape)


def batch_layout(global_batch_rows: int, micro_batch_rows: int | None, *, data_parallel: int) -> BatchLayout:
    """Divide a step of G rows over ranks and micro-batches; without `micro_batch_rows`, the largest share up to 12.

    Raises:
        SettingsError: if the ranks times the micro-batch do not divide G.
    """
    share, left = divmod(global_batch_rows, data_parallel)
    if micro_batch_rows is None and left == 0:
        candidates = range(1, min(share, _LARGEST_DEFAULT_MICRO_BATCH) + 1)
        micro_batch_rows = max(rows for rows in candidates if share % rows == 0)
    if left or micro_batch_rows is None or share % micro_batch_rows:
        asked = "" if micro_batch_rows is None else f" x train.micro_batch_rows={micro_batch_rows}"
        raise SettingsError(
            f"train.global_batch_rows={global_batch_rows} cannot be dealt evenly: "
            f"{counted(data_parallel, 'data-parallel rank')}{asked} = {data_parallel * (micro_batch_rows or 1)} does "
            f"not divide {global_batch_rows}.\n"
            "Change train.global_batch_rows, train.micro_batch_rows or --num-procs so that it does."
        )
    return BatchLayout(global_batch_rows, micro_batch_rows, data_parallel)
