"""Where data meets objectives: the micro-batches of one rank for one step."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from toolkit.core.draws import Draws, keyed_uint64
from toolkit.core.types import IntArray
from toolkit.data import Rows, RowStream, TokenRows, row_hashes
from toolkit.engine.engine import MicroBatch
from toolkit.model.attention import SegmentLayout
from toolkit.model.placement import placed
from toolkit.objectives.base import Objective
from toolkit.parallel.topology import BatchLayout

# A compiled step would be compiled again for every number of targets; on a GPU so would its memory be laid out again.
_TARGETS_MULTIPLE = 256


@dataclass(frozen=True)
class LocalStep:
    """What one rank runs in one step, and what it has to tell the others: counts, and a hash of each row."""

    micro_batches: tuple[MicroBatch, ...]
    num_targets: int
    num_tokens: int
    num_pairs: int
    row_hashes: npt.NDArray[np.uint8]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Targets, tokens that are no padding, (query, key) pairs that see each other."""
        return self.num_targets, self.num_tokens, self.num_pairs


Shares = Generator[LocalStep, None, None]
"""One rank's part of one step after the other."""


class Batcher:
    """Builds the micro-batches of one rank; a pure function of (step, objective).

    Args:
        stream: rows by global sample position.
        layout: how a step's rows are dealt.
        rank: whose share.
        seed: of the run; draws are keyed with it.
        device: where the micro-batches go.
        has_static_shapes: whether to pad target lists, for a GPU or compiled blocks.
    """

    def __init__(
        self,
        stream: RowStream,
        layout: BatchLayout,
        *,
        rank: int,
        seed: int,
        device: torch.device,
        has_static_shapes: bool,
    ) -> None:
        self._stream, self._layout, self._seed, self._device = stream, layout, seed, device
        self._row_numbers = layout.row_numbers(rank)
        self._targets_multiple = _TARGETS_MULTIPLE if has_static_shapes else 1

    def step(self, step: int, objective: Objective) -> LocalStep:
        """This rank's share of the update with 0-based index `step`."""
        micro_batches, hashes, num_targets, num_tokens, num_pairs = [], [], 0, 0, 0
        for positions_B in self.positions(step):
            rows = self._stream.at(positions_B)
            batch, count = _supervise(
                rows,
                objective,
                Draws(self._seed, positions_B, num_columns=rows.tokens_BS.shape[1]),
                device=self._device,
                targets_multiple=self._targets_multiple,
            )
            micro_batches.append(batch)
            hashes.append(row_hashes(rows.tokens_BS, rows.segments_BS))
            num_targets += count
            num_tokens += int(np.count_nonzero(rows.segments_BS))
            num_pairs += batch.layout.num_pairs(objective.attention)
        return LocalStep(tuple(micro_batches), num_targets, num_tokens, num_pairs, np.concatenate(hashes))

    def steps(self, start: int, stop: int, objective_at: Callable[[int], Objective]) -> Shares:
        """This rank's shares of the updates `start` to `stop` - 1, each built while the one before it is worked on.

        To be closed by whoever stops early.
        """
        with ThreadPoolExecutor(max_workers=1, initializer=self._enter_thread) as thread:
            begun = (thread.submit(self.step, step, objective_at(step)) for step in range(start, stop))
            awaited = next(begun, None)
            while awaited is not None:
                share = awaited.result()
                awaited = next(begun, None)
                yield share

    def _enter_thread(self) -> None:
        # Each thread has its own current GPU, and pinning memory makes a context on it.
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def positions(self, step: int) -> npt.NDArray[np.int64]:
        """Global sample positions of this rank's rows: (accumulation, micro-batch rows)."""
        return step * self._layout.global_batch_rows + self._row_numbers


def evaluation_batches(
    rows: Rows,
    objective: Objective,
    *,
    num_rows: int,
    micro_batch_rows: int,
    rank: int,
    world_size: int,
    seed: int,
    device: torch.device,
) -> Iterator[tuple[MicroBatch, int]]:
    """This rank's share of the first `num_rows` rows, with masks that are the same at every evaluation.

    Every rank yields equally many micro-batches; one that has run out of rows yields row 0 without targets.
    """
    evaluation_seed = keyed_uint64(seed, "evaluation")
    for first in range(
        rank * micro_batch_rows, _round_up(num_rows, micro_batch_rows * world_size), micro_batch_rows * world_size
    ):
        rows_B = np.arange(first, min(first + micro_batch_rows, num_rows), dtype=np.int64)
        is_spare = rows_B.size == 0
        rows_B = np.zeros(1, dtype=np.int64) if is_spare else rows_B
        read = rows.read(rows_B, np.zeros_like(rows_B))
        draws = Draws(evaluation_seed, rows_B, num_columns=read.tokens_BS.shape[1])
        batch, count = _supervise(read, objective, draws, device=device, targets_multiple=1)
        if is_spare:
            nothing = torch.empty(0, dtype=torch.int64, device=device)
            batch, count = MicroBatch(batch.input_ids_BS, batch.layout, nothing, nothing), 0
        yield batch, count


def _supervise(
    rows: TokenRows, objective: Objective, draws: Draws, *, device: torch.device, targets_multiple: int
) -> tuple[MicroBatch, int]:
    """Rows as the objective sees them, and how many targets there are."""
    targets = objective.build(rows.tokens_BS, rows.segments_BS, draws)
    count = targets.positions_N.size
    padding = _round_up(count, targets_multiple) - count
    batch = MicroBatch(
        input_ids_BS=_tensor(targets.input_ids_BS, device),
        layout=SegmentLayout.from_segments(rows.segments_BS, device=device),
        positions_N=_tensor(np.pad(targets.positions_N, (0, padding)), device),
        # A negative label weighs nothing.
        labels_N=_tensor(np.pad(targets.labels_N, (0, padding), constant_values=-1), device),
    )
    return batch, count


def _tensor(array: IntArray, device: torch.device) -> torch.Tensor:
    return placed(array.astype(np.int64), device)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
