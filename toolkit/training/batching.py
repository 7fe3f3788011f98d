"""Micro-batches of one rank: rows of token ids turned into inputs and targets by an objective.

Shapes: B rows in a micro-batch, S positions in a row, N targets.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from toolkit.core.draws import Draws, keyed_uint64
from toolkit.core.errors import SettingsError
from toolkit.core.types import IntArray, Targets
from toolkit.data import Rows, RowStream, TokenRows, row_hashes
from toolkit.engine.engine import MicroBatch
from toolkit.model.segments import SegmentLayout, to_device
from toolkit.objectives.base import Objective
from toolkit.parallel.topology import BatchPlan
from toolkit.training.run_state import StepCounts

_CPU = torch.device("cpu")
STATIC_TARGETS_MULTIPLE = 256
"""For compiled blocks, which would be compiled again for every number of targets; and for a GPU, whose memory would be
laid out again."""


@dataclass(frozen=True)
class LocalStep:
    """Part of a step that one rank runs, and what it tells the others: counts, and a hash of each row."""

    micro_batches: tuple[MicroBatch, ...]
    counts: StepCounts
    row_hashes: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class StepRows:
    """Source of the rows of a step."""

    stream: RowStream
    corpora: Sequence[str]
    """Names of its corpora, for messages."""
    position: int
    """Sample index of the first."""
    layout: BatchPlan


class Batcher:
    """Builds the micro-batches of one rank; a pure function of (step, objective), with draws keyed by the run's seed.

    `rows_at` takes the 0-based index of an update. Lists of targets are padded to a multiple of `targets_multiple`: 1,
    or `STATIC_TARGETS_MULTIPLE`.
    """

    def __init__(
        self,
        rows_at: Callable[[int], StepRows],
        *,
        data_rank: int,
        seed: int,
        device: torch.device,
        targets_multiple: int,
    ) -> None:
        self._rows_at, self._data_rank, self._seed = rows_at, data_rank, seed
        self._device, self._targets_multiple = device, targets_multiple

    def step(self, step: int, objective: Objective) -> LocalStep:
        """Share of this rank of the update with 0-based index `step`."""
        micro_batches, hashes, counts = [], [], np.zeros(3, dtype=np.int64)
        stream = self._rows_at(step).stream
        for samples_B in self.samples(step):
            rows = stream.at(samples_B)
            draws = Draws(self._seed, samples_B, num_columns=rows.tokens_BS.shape[1])
            targets = _build(objective, rows, draws)
            batch = _make_micro_batch(targets, rows.segments_BS, self._device, self._targets_multiple)
            micro_batches.append(batch)
            hashes.append(row_hashes(rows.tokens_BS, rows.segments_BS))
            num_tokens = int(np.count_nonzero(rows.segments_BS))
            counts += targets.labels_N.size, num_tokens, batch.layout.attended_pairs(objective.attention)
        return LocalStep(tuple(micro_batches), StepCounts(*counts.tolist()), np.concatenate(hashes))

    def samples(self, step: int) -> npt.NDArray[np.int64]:
        """Global sample indices of this rank's rows: (accumulation, micro-batch rows)."""
        rows = self._rows_at(step)
        return rows.position + rows.layout.row_numbers(self._data_rank)

    def name_rows(self, step: int, micro_batches: Sequence[int] | None) -> str:
        """The rows of some of this rank's micro-batches of a step, or of all: by epoch, and by corpus in a blend."""
        rows_of_step, samples = self._rows_at(step), self.samples(step)
        located = rows_of_step.stream.locate(
            (samples if micro_batches is None else samples[list(micro_batches)]).ravel()
        )
        named = []
        for number, epoch in np.unique(np.stack([located.corpora_B, located.epochs_B], axis=1), axis=0).tolist():
            rows = located.rows_B[(located.corpora_B == number) & (located.epochs_B == epoch)]
            names = rows_of_step.corpora
            corpus = f"{names[number]} " if len(names) > 1 else ""
            named.append(f"{corpus}epoch {epoch}: " + ", ".join(str(row) for row in np.sort(rows)))
        return ", ".join(named)


@dataclass(frozen=True)
class EvaluationBatches:
    """One rank's share of validation rows, with masks that are the same at every evaluation.

    Every rank has equally many micro-batches and each has the full number of rows, since a compiled model would be
    compiled again for another. Missing rows are padding, without targets.
    """

    rows: Rows
    num_rows: int
    """The first so many are used."""
    micro_batch_rows: int
    seed: int
    data_rank: int = 0
    data_parallel_size: int = 1
    device: torch.device = _CPU
    targets_multiple: int = 1

    @property
    def num_batches(self) -> int:
        """Micro-batches of each rank."""
        return -(-self.num_rows // (self.micro_batch_rows * self.data_parallel_size))

    def of(self, objective: Objective) -> Iterator[tuple[MicroBatch, int]]:
        """Micro-batches, and how many targets each has."""
        evaluation_seed = keyed_uint64(self.seed, "evaluation")
        size, length = self.micro_batch_rows, self.rows.sequence_length
        for number in range(self.num_batches):
            first = (number * self.data_parallel_size + self.data_rank) * size
            rows_B = np.arange(first, min(first + size, self.num_rows), dtype=np.int64)
            segments_BS = np.zeros((size, length), dtype=np.int32)
            input_ids_BS = np.zeros((size, length), dtype=np.int64)
            nothing = np.zeros(0, dtype=np.int64)
            targets = Targets(input_ids_BS=input_ids_BS, positions_N=nothing, labels_N=nothing)
            if rows_B.size:
                rows = self.rows.read(rows_B, np.zeros_like(rows_B))
                built = _build(objective, rows, Draws(evaluation_seed, rows_B, num_columns=length))
                segments_BS[: rows_B.size], input_ids_BS[: rows_B.size] = rows.segments_BS, built.input_ids_BS
                targets = Targets(input_ids_BS=input_ids_BS, positions_N=built.positions_N, labels_N=built.labels_N)
            batch = _make_micro_batch(targets, segments_BS, self.device, self.targets_multiple)
            yield batch, targets.labels_N.size


def _build(objective: Objective, rows: TokenRows, draws: Draws) -> Targets:
    """Inputs and targets that the objective makes of rows, which stay as they are: they are hashed later."""
    rows.tokens_BS.flags.writeable = rows.segments_BS.flags.writeable = False
    named = f"the objective {objective.name} ({type(objective).__module__}.{type(objective).__qualname__})"
    try:
        targets = objective.build(rows.tokens_BS, rows.segments_BS, draws)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise SettingsError(
            f"{named} writes into its input: {error}.\nbuild() may change copies only: tokens_BS.copy(), "
            "segments_BS.copy()."
        ) from error
    if not (np.diff(targets.positions_N.astype(np.int64)) > 0).all():
        raise SettingsError(
            f"{named} gives positions_N that do not ascend, or one of them twice.\nbuild() has to sort them, and their "
            "labels with them, as np.flatnonzero gives them."
        )
    return targets


def _make_micro_batch(
    targets: Targets, segments_BS: IntArray, device: torch.device, targets_multiple: int
) -> MicroBatch:
    """Inputs and targets on the device; the lists of targets are filled up to a multiple, never to none of several."""
    count = targets.labels_N.size
    padding = -count % targets_multiple
    if count == 0 and targets_multiple > 1:
        padding = targets_multiple
    # Filled up with the last position, so that they still ascend.
    positions_N = np.pad(targets.positions_N.astype(np.int64), (0, padding), constant_values=segments_BS.size - 1)
    layout = SegmentLayout.from_segments(
        segments_BS, device=device, positions_N=positions_N, most_repeats=targets_multiple
    )
    return MicroBatch(
        input_ids_BS=to_device(targets.input_ids_BS.astype(np.int64), device),
        layout=layout,
        positions_N=to_device(positions_N, device),
        # A negative label weighs nothing.
        labels_N=to_device(np.pad(targets.labels_N.astype(np.int64), (0, padding), constant_values=-1), device),
    )
