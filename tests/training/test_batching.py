"""Micro-batches are a function of (step, objective) and the share, and nothing else."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.support.runs import write_run
from toolkit.core.draws import Draws
from toolkit.core.errors import SettingsError
from toolkit.core.types import AttentionKind, Targets
from toolkit.data import Corpus, Order, RowStream, open_rows
from toolkit.objectives import registry
from toolkit.parallel.topology import batch_plan
from toolkit.run import load_run
from toolkit.training.batching import STATIC_TARGETS_MULTIPLE, Batcher, EvaluationBatches, StepRows

_CPU = torch.device("cpu")


@pytest.fixture
def parts(tmp_path):
    settings = load_run(str(write_run(tmp_path)))
    corpus = Corpus(settings.data.train)
    rows = open_rows(corpus, settings.data, seed=7)
    order = Order(rows.num_rows, seed=7, shuffle="global")
    return rows, RowStream(rows, order), registry.build("mlm", {}, corpus.vocabulary)


def _batcher(stream, *, micro, ranks, rank, device=_CPU, targets_multiple=1):
    layout = batch_plan(8, micro, data_parallel=ranks)
    return Batcher(
        lambda step: StepRows(stream, ["corpus"], 8 * step, layout),
        data_rank=rank,
        seed=7,
        device=device,
        targets_multiple=targets_multiple,
    )


def test_any_cut_of_a_step_gives_the_same_inputs_and_targets(parts):
    _, stream, mlm = parts
    (whole,) = _batcher(stream, micro=8, ranks=1, rank=0).step(3, mlm).micro_batches
    shares = [_batcher(stream, micro=2, ranks=2, rank=rank).step(3, mlm).micro_batches for rank in (0, 1)]
    in_order = [shares[rank][number] for number in range(2) for rank in range(2)]
    assert torch.equal(torch.cat([batch.input_ids_BS for batch in in_order]), whole.input_ids_BS)
    positions = [batch.positions_N + number * 2 * 64 for number, batch in enumerate(in_order)]
    assert torch.equal(torch.cat(positions), whole.positions_N)
    assert torch.equal(torch.cat([batch.labels_N for batch in in_order]), whole.labels_N)


def test_another_step_draws_other_masks(parts):
    _, stream, mlm = parts
    batcher = _batcher(stream, micro=8, ranks=1, rank=0)
    first, second = (batcher.step(step, mlm).micro_batches[0] for step in (0, 1))
    assert first.positions_N.tolist() != second.positions_N.tolist()


def test_padded_target_lists_hold_the_same_targets(parts):
    _, stream, mlm = parts
    plain = _batcher(stream, micro=8, ranks=1, rank=0).step(0, mlm)
    padded = _batcher(stream, micro=8, ranks=1, rank=0, targets_multiple=STATIC_TARGETS_MULTIPLE).step(0, mlm)
    labels = padded.micro_batches[0].labels_N
    assert labels.numel() % 256 == 0
    assert padded.counts == plain.counts
    assert torch.equal(labels[labels >= 0], plain.micro_batches[0].labels_N)
    assert (labels < 0).sum() == labels.numel() - plain.counts.targets
    positions = padded.micro_batches[0].positions_N
    assert (positions.diff() >= 0).all()
    assert set(positions[labels < 0].tolist()) == {8 * 64 - 1}


def test_the_layout_knows_which_targets_lie_in_which_stretch(parts):
    _, stream, mlm = parts
    (batch,) = _batcher(stream, micro=8, ranks=1, rank=0, targets_multiple=64).step(0, mlm).micro_batches
    starts, bounds = batch.layout.bounds_M.tolist(), batch.layout.targets.bounds_M.tolist()
    assert (bounds[0], bounds[-1]) == (0, batch.positions_N.numel())
    for (first, stop), (start, end) in zip(pairwise(bounds), pairwise(starts), strict=True):
        assert ((batch.positions_N[first:stop] >= start) & (batch.positions_N[first:stop] < end)).all()
        assert stop - first <= batch.layout.targets.longest


class _Unsorted:
    """An objective whose targets do not ascend."""

    name, attention = "unsorted", AttentionKind.BIDIRECTIONAL

    def build(self, tokens_BS, segments_BS, draws):
        # Unsigned, so that the difference of two would not be below zero.
        positions_N = np.array([5, 1], dtype=np.uint32)
        return Targets(input_ids_BS=tokens_BS, positions_N=positions_N, labels_N=np.array([5, 6]))


def test_an_objective_whose_targets_do_not_ascend_is_named(parts):
    with pytest.raises(SettingsError, match=r"objective unsorted \(.*_Unsorted\) gives positions_N that do not ascend"):
        _batcher(parts[1], micro=8, ranks=1, rank=0).step(0, _Unsorted())


def test_counts_are_of_tokens_and_targets(parts):
    _, stream, mlm = parts
    local = _batcher(stream, micro=4, ranks=1, rank=0).step(0, mlm)
    rows = stream.at(np.arange(8))
    assert local.counts.tokens == np.count_nonzero(rows.segments_BS)
    assert local.counts.targets == sum(batch.labels_N.numel() for batch in local.micro_batches)
    assert local.row_hashes.shape == (8, 8)


class _Overwrites:
    """An objective that masks in place."""

    name, attention = "overwrites", AttentionKind.BIDIRECTIONAL

    def build(self, tokens_BS, segments_BS, draws):
        tokens_BS[:, 1] = 2
        return Targets(input_ids_BS=tokens_BS, positions_N=np.array([1]), labels_N=np.array([5]))


def test_an_objective_that_writes_into_its_input_is_named(parts):
    """Counts and the digest are taken of the rows after it."""
    rows, stream, _ = parts
    with pytest.raises(SettingsError, match=r"objective overwrites \(.*_Overwrites\) writes into its input.*\n.*copy"):
        _batcher(stream, micro=8, ranks=1, rank=0).step(0, _Overwrites())
    batches = EvaluationBatches(rows, num_rows=8, micro_batch_rows=8, seed=7)
    with pytest.raises(SettingsError, match="objective overwrites"):
        list(batches.of(_Overwrites()))


class TestEvaluationBatches:
    @pytest.mark.parametrize("num_ranks", [1, 2, 3])
    def test_each_row_is_covered_once_by_equally_many_full_batches(self, parts, num_ranks):
        rows, _, mlm = parts
        ((alone, expected),) = EvaluationBatches(rows, num_rows=7, micro_batch_rows=7, seed=7).of(mlm)
        shares = [
            list(
                EvaluationBatches(
                    rows, num_rows=7, micro_batch_rows=2, seed=7, data_rank=rank, data_parallel_size=num_ranks
                ).of(mlm)
            )
            for rank in range(num_ranks)
        ]
        assert {len(share) for share in shares} == {{1: 4, 2: 2, 3: 2}[num_ranks]}
        in_order = [share[number] for number in range(len(shares[0])) for share in shares]
        assert {batch.input_ids_BS.shape for batch, _ in in_order} == {(2, 64)}
        assert torch.equal(torch.cat([batch.input_ids_BS for batch, _ in in_order])[:7], alone.input_ids_BS)
        assert torch.cat([batch.labels_N for batch, _ in in_order]).tolist() == alone.labels_N.tolist()
        assert sum(count for _, count in in_order) == expected

    def test_missing_rows_are_padding(self, parts):
        rows, _, mlm = parts
        batches = EvaluationBatches(
            rows,
            num_rows=1,
            micro_batch_rows=2,
            seed=7,
            data_rank=1,
            data_parallel_size=2,
            targets_multiple=STATIC_TARGETS_MULTIPLE,
        )
        ((spare, count),) = batches.of(mlm)
        assert count == 0
        assert not spare.layout.is_real_T.any()
        # Not empty: a list of length 0 would be another graph.
        assert spare.labels_N.tolist() == [-1] * STATIC_TARGETS_MULTIPLE

    def test_their_masks_are_not_those_of_training(self, parts):
        rows, _, mlm = parts
        ((batch, _),) = EvaluationBatches(rows, num_rows=8, micro_batch_rows=8, seed=7).of(mlm)
        numbers = np.arange(8)
        read = rows.read(numbers, np.zeros_like(numbers))
        training = mlm.build(read.tokens_BS, read.segments_BS, Draws(7, numbers, num_columns=64))
        assert batch.positions_N.tolist() != training.positions_N.tolist()
