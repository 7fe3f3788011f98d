"""Micro-batches of one rank: rows of token ids turned into inputs and targets by an objective.

Shapes: B rows in a micro-batch, S positions in a row, N targets.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from toolkit.core.draws import Draws, keyed_uint64
from toolkit.core.types import AttentionKind, IntArray
from toolkit.data import Rows, RowStream, TokenRows, row_hashes
from toolkit.engine.step import MicroBatch
from toolkit.model.config import ModelSettings
from toolkit.model.segments import MixedRows, SegmentLayout, to_device
from toolkit.objectives.base import Objective
from toolkit.objectives.mixture import StepMix
from toolkit.parallel.topology import BatchPlan
from toolkit.training.problem import Problem, deal
from toolkit.training.run_state import StepCounts

_CPU = torch.device("cpu")
STATIC_TARGETS_MULTIPLE = 256
"""Target lists are padded to a multiple of this for compiled blocks, which would be recompiled for every number of
targets, and for a GPU, whose memory would be laid out again."""


@dataclass(frozen=True)
class LocalStep:
    """Part of a step that one rank runs, and what it shares with the others: counts, and a hash of each row."""

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
    """Sample index of the first row."""
    layout: BatchPlan
    dealt_P: IntArray
    """Number of rows of each objective of the step."""


class Batcher:
    """Builds the micro-batches of one rank; a pure function of (step, mix), with draws keyed by the run's seed.

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
        model: ModelSettings,
    ) -> None:
        self._rows_at, self._data_rank, self._seed, self._model = rows_at, data_rank, seed, model
        self._device, self._targets_multiple = device, targets_multiple

    def step(self, step: int, mix: StepMix) -> LocalStep:
        """This rank's share of the update with 0-based index `step`."""
        micro_batches, hashes, counts = [], [], []
        rows_of_step, samples = self._rows_at(step), self.samples(step)
        objectives = deal(rows_of_step.dealt_P, seed=self._seed, step=step)[samples - rows_of_step.position]
        for samples_B, objective_B in zip(samples, objectives, strict=True):
            rows = rows_of_step.stream.at(samples_B)
            problem = Problem.pose(mix, rows, objective_B, samples_B, seed=self._seed)
            batch = _make_micro_batch(problem, len(mix.names), self._device, self._targets_multiple)
            micro_batches.append(batch)
            hashes.append(row_hashes(rows.tokens_BS, rows.segments_BS))
            num_tokens = int(np.count_nonzero(rows.segments_BS))
            counts.append(
                StepCounts(*problem.counts(len(mix.names)), num_tokens, batch.attended_pairs(self._model)).packed()
            )
        return LocalStep(tuple(micro_batches), StepCounts.summed(np.stack(counts)), np.concatenate(hashes))

    def num_objectives(self, step: int) -> int:
        """Number of objectives among which the rows of the step are dealt."""
        return len(self._rows_at(step).dealt_P)

    def samples(self, step: int) -> npt.NDArray[np.int64]:
        """Global sample indices of this rank's rows: (accumulation, micro-batch rows)."""
        rows = self._rows_at(step)
        return rows.position + rows.layout.row_numbers(self._data_rank)

    def name_rows(self, step: int, micro_batches: Sequence[int] | None) -> str:
        """Rows of some or all (None) of this rank's micro-batches of a step: by epoch, and by corpus in a blend."""
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

    Every rank has equally many micro-batches, each with the full number of rows, since a compiled model would be
    recompiled for another number. Missing rows are padding, without targets.
    """

    rows: Rows
    num_rows: int
    """Number of rows used, from the start."""
    micro_batch_rows: int
    seed: int
    data_rank: int = 0
    data_parallel_size: int = 1
    device: torch.device = _CPU
    targets_multiple: int = 1

    @property
    def num_batches(self) -> int:
        """Number of micro-batches of each rank."""
        return -(-self.num_rows // (self.micro_batch_rows * self.data_parallel_size))

    def of(self, objective: Objective) -> Iterator[MicroBatch]:
        """Micro-batches of an objective."""
        evaluation_seed = keyed_uint64(self.seed, "evaluation")
        size, length = self.micro_batch_rows, self.rows.sequence_length
        for number in range(self.num_batches):
            first = (number * self.data_parallel_size + self.data_rank) * size
            rows_B = np.arange(first, min(first + size, self.num_rows), dtype=np.int64)
            read = self.rows.read(rows_B, np.zeros_like(rows_B))
            missing = ((0, size - rows_B.size), (0, 0))
            rows = TokenRows(np.pad(read.tokens_BS, missing), np.pad(read.segments_BS, missing))
            problem = Problem.of_one(
                objective, rows, Draws(evaluation_seed, first + np.arange(size), num_columns=length)
            )
            yield _make_micro_batch(problem, 1, self.device, self.targets_multiple)


def _make_micro_batch(problem: Problem, num_objectives: int, device: torch.device, targets_multiple: int) -> MicroBatch:
    """Inputs and targets on the device; target lists are padded to a multiple, and are not empty if it is above 1."""
    targets, segments_BS = problem.targets, problem.segments_BS
    count = targets.labels_N.size
    padding = -count % targets_multiple
    if count == 0 and targets_multiple > 1:
        padding = targets_multiple

    def filled(array_N: npt.NDArray[Any], value: int) -> torch.Tensor:
        return to_device(np.pad(array_N, (0, padding), constant_values=value), device)

    # Padded with the last position, so that they still ascend.
    positions_N = np.pad(targets.positions_N.astype(np.int64), (0, padding), constant_values=segments_BS.size - 1)
    layout = SegmentLayout.from_segments(
        segments_BS, device=device, positions_N=positions_N, most_repeats=targets_multiple
    )
    causal = problem.num_causal
    attention: AttentionKind | MixedRows = AttentionKind.BIDIRECTIONAL
    if causal == len(segments_BS):
        attention = AttentionKind.CAUSAL
    elif causal:
        parts = (SegmentLayout.from_segments(part, device=device) for part in np.split(segments_BS, [causal]))
        attention = MixedRows(*parts)
    return MicroBatch(
        input_ids_BS=to_device(targets.input_ids_BS.astype(np.int64), device),
        layout=layout,
        attention=attention,
        positions_N=to_device(positions_N, device),
        # A negative label has no weight.
        labels_N=filled(targets.labels_N.astype(np.int64), -1),
        weights_N=None if targets.weights_N is None else filled(targets.weights_N.astype(np.float32), 0),
        objective_N=filled(problem.objective_N.astype(np.int64), 0) if num_objectives > 1 else None,
    )
