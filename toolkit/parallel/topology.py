"""Place of each rank in the run, and division of the rows of a step among data-parallel ranks."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from toolkit.core.errors import SettingsError
from toolkit.core.settings import Settings
from toolkit.core.text import counted

_MOST_DIVISORS = 4
LARGEST_DEFAULT_MICRO_BATCH = 12
"""Rows; the paper's micro-batch."""


class ParallelSettings(Settings):
    """Degrees of model parallelism; the ranks left over are data parallel."""

    tp: int = Field(1, gt=0)
    """Tensor parallel degree."""
    pp: int = Field(1, gt=0)
    """Pipeline parallel degree."""
    stages: tuple[Annotated[int, Field(gt=0)], ...] | None = Field(None, strict=False)
    """Blocks per pipeline stage. Unset: balanced by FLOPs, head included."""


@dataclass(frozen=True)
class Topology:
    """Place of a rank among pp x dp x tp ranks; tensor-parallel ranks are neighbours, pipeline stages farthest apart.

    A *rank* numbers all processes: it decides which of them prints, writes and saves. A *data rank* numbers the model's
    copies: it decides which rows a rank gets, and over how many copies gradients and counts are summed. All ranks of
    one copy have the same data rank.
    """

    rank: int
    dp: int
    tp: int = 1
    pp: int = 1

    @property
    def world_size(self) -> int:
        """Number of all ranks."""
        return self.dp * self.tp * self.pp

    @property
    def tp_rank(self) -> int:
        """Index of this rank's share of its layers' weights."""
        return self.rank % self.tp

    @property
    def stage(self) -> int:
        """Pipeline stage that this rank runs."""
        return self.rank // (self.tp * self.dp)

    @property
    def has_loss(self) -> bool:
        """True if this rank is the one of its copy that reports the loss: the first of the last stage."""
        return self.stage == self.pp - 1 and self.tp_rank == 0

    @property
    def data_rank(self) -> int:
        """Index of the copy of the model that this rank has, or has a part of."""
        return self.rank // self.tp % self.dp

    @property
    def ranks_per_stage(self) -> int:
        """Number of ranks with parts of the same layers, in all copies."""
        return self.tp * self.dp

    @property
    def data_parallel_ranks(self) -> tuple[int, ...]:
        """The ranks with the same part of each copy, ordered by data rank: they reduce gradients together."""
        first = self.rank - self.data_rank * self.tp
        return tuple(range(first, first + self.ranks_per_stage, self.tp))

    @property
    def tensor_parallel_ranks(self) -> tuple[int, ...]:
        """The ranks with the shares of one layer of one copy, ordered by share."""
        first = self.rank - self.tp_rank
        return tuple(range(first, first + self.tp))

    @property
    def vocabulary_ranks(self) -> tuple[int, ...]:
        """This copy's ranks with the same share of the vocabulary, in the first and the last stage."""
        in_stage = self.rank % self.ranks_per_stage
        return tuple(sorted({in_stage, in_stage + (self.pp - 1) * self.ranks_per_stage}))


def topology(rank: int, world_size: int, parallel: ParallelSettings) -> Topology:
    """Place of a rank among `world_size`; the ranks left over by model parallelism are data parallel."""
    dp, left = divmod(world_size, parallel.tp * parallel.pp)
    if left or not dp:
        raise SettingsError(
            f"parallel.tp={parallel.tp} x parallel.pp={parallel.pp} = {parallel.tp * parallel.pp} does not divide "
            f"{counted(world_size, 'rank')}.\nChange one of the two, or set --num-procs to a multiple of "
            f"{parallel.tp * parallel.pp}."
        )
    return Topology(rank, dp, parallel.tp, parallel.pp)


@dataclass(frozen=True)
class BatchPlan:
    """Division of the G rows of a step: accumulation x data-parallel ranks x micro-batch rows."""

    global_batch_rows: int
    micro_batch_rows: int
    data_parallel: int

    @property
    def accumulation(self) -> int:
        """Micro-batches that one rank runs in a step."""
        return self.global_batch_rows // (self.micro_batch_rows * self.data_parallel)

    def describe(self) -> str:
        """The division in words."""
        return (
            f"{counted(self.global_batch_rows, 'row')} a step = {self.micro_batch_rows} a micro-batch x "
            f"{counted(self.accumulation, 'micro-batch', 'micro-batches')} x "
            f"{counted(self.data_parallel, 'data-parallel rank')}"
        )

    def is_small(self, fitting: int) -> bool:
        """True if micro-batches have less than half of the rows that a rank could run at once, at most `fitting`."""
        return 2 * self.micro_batch_rows < min(self.global_batch_rows // self.data_parallel, fitting)

    def row_numbers(self, data_rank: int) -> npt.NDArray[np.int64]:
        """A data-parallel rank's rows of the step, numbered 0..G-1: (accumulation, micro_batch_rows)."""
        shape = (self.accumulation, self.data_parallel, self.micro_batch_rows)
        return np.arange(self.global_batch_rows, dtype=np.int64).reshape(shape)[:, data_rank]

    def in_step_order(self, per_rank: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Reorder (data-parallel ranks, rows per rank, bytes), in the ranks' order, to the step's (G, bytes)."""
        divided = per_rank.reshape(self.data_parallel, self.accumulation, self.micro_batch_rows, -1)
        return divided.transpose(1, 0, 2, 3).reshape(self.global_batch_rows, -1)


def batch_plan(global_batch_rows: int, micro_batch_rows: int | None, *, data_parallel: int) -> BatchPlan:
    """Divide a step of G rows over ranks and micro-batches; by default, into the largest micro-batches up to 12."""
    share, left = divmod(global_batch_rows, data_parallel)
    if micro_batch_rows is None and left == 0:
        candidates = range(1, min(share, LARGEST_DEFAULT_MICRO_BATCH) + 1)
        micro_batch_rows = max(rows for rows in candidates if share % rows == 0)
    if left or micro_batch_rows is None or share % micro_batch_rows:
        asked = "" if micro_batch_rows is None else f" x train.micro_batch_rows={micro_batch_rows}"
        if left:
            possible = _divisors(global_batch_rows, data_parallel)
            remedy = f"Change --num-procs so that the number of data-parallel ranks is {possible}"
        else:
            remedy = f"Set train.micro_batch_rows to {_divisors(share, micro_batch_rows or 1)}, change --num-procs"
        raise SettingsError(
            f"train.global_batch_rows={global_batch_rows} cannot be divided evenly: "
            f"{counted(data_parallel, 'data-parallel rank')}{asked} = {data_parallel * (micro_batch_rows or 1)} does "
            f"not divide {global_batch_rows}.\n"
            f"{remedy}, or change train.global_batch_rows."
        )
    return BatchPlan(global_batch_rows, micro_batch_rows, data_parallel)


def _divisors(number: int, near: int) -> str:
    """'2, 4 or 8': the divisors of a number that are nearest to `near`, ascending."""
    divisors = sorted((rows for rows in range(1, number + 1) if number % rows == 0), key=lambda rows: abs(rows - near))
    *first, last = map(str, sorted(divisors[:_MOST_DIVISORS]))
    return f"{', '.join(first)} or {last}" if first else last
