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
from toolkit.model.segments import MixedRows
from toolkit.objectives import registry
from toolkit.objectives.mixture import StepMix
from toolkit.parallel.topology import batch_plan
from toolkit.run import load_run
from toolkit.testing.contracts import CONTRACT_VOCABULARY
from toolkit.testing.models import tiny_settings
from toolkit.training.batching import STATIC_TARGETS_MULTIPLE, Batcher, EvaluationBatches, StepRows
from toolkit.training.problem import deal
from toolkit.training.run_state import StepCounts

_CPU = torch.device("cpu")


@pytest.fixture
def parts(tmp_path):
    settings = load_run(str(write_run(tmp_path)))
    corpus = Corpus(settings.data.train)
    rows = open_rows(corpus, settings.data, seed=7)
    order = Order(rows.num_rows, seed=7, shuffle="global")
    return rows, RowStream(rows, order), registry.build("mlm", {}, corpus.vocabulary)


def _alone(objective):
    return StepMix((objective.name,), (objective,), (1.0,))


def _batcher(stream, *, micro, ranks, rank, device=_CPU, targets_multiple=1, dealt=(8,)):
    layout = batch_plan(8, micro, data_parallel=ranks)
    return Batcher(
        lambda step: StepRows(stream, ["corpus"], 8 * step, layout, np.array(dealt)),
        data_rank=rank,
        seed=7,
        device=device,
        targets_multiple=targets_multiple,
        model=tiny_settings(),
    )


def test_any_cut_of_a_step_gives_the_same_inputs_and_targets(parts):
    _, stream, mlm = parts
    (whole,) = _batcher(stream, micro=8, ranks=1, rank=0).step(3, _alone(mlm)).micro_batches
    shares = [_batcher(stream, micro=2, ranks=2, rank=rank).step(3, _alone(mlm)).micro_batches for rank in (0, 1)]
    in_order = [shares[rank][number] for number in range(2) for rank in range(2)]
    assert torch.equal(torch.cat([batch.input_ids_BS for batch in in_order]), whole.input_ids_BS)
    positions = [batch.positions_N + number * 2 * 64 for number, batch in enumerate(in_order)]
    assert torch.equal(torch.cat(positions), whole.positions_N)
    assert torch.equal(torch.cat([batch.labels_N for batch in in_order]), whole.labels_N)


def test_another_step_draws_other_masks(parts):
    _, stream, mlm = parts
    batcher = _batcher(stream, micro=8, ranks=1, rank=0)
    first, second = (batcher.step(step, _alone(mlm)).micro_batches[0] for step in (0, 1))
    assert first.positions_N.tolist() != second.positions_N.tolist()


def test_padded_target_lists_hold_the_same_targets(parts):
    _, stream, mlm = parts
    plain = _batcher(stream, micro=8, ranks=1, rank=0).step(0, _alone(mlm))
    padded = _batcher(stream, micro=8, ranks=1, rank=0, targets_multiple=STATIC_TARGETS_MULTIPLE).step(0, _alone(mlm))
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
    (batch,) = _batcher(stream, micro=8, ranks=1, rank=0, targets_multiple=64).step(0, _alone(mlm)).micro_batches
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
        _batcher(parts[1], micro=8, ranks=1, rank=0).step(0, _alone(_Unsorted()))


class _Weighed:
    """An objective of one target, with these weights."""

    name, attention = "weighed", AttentionKind.BIDIRECTIONAL

    def __init__(self, weights):
        self.weights_N = np.array(weights, dtype=np.float32)

    def build(self, tokens_BS, segments_BS, draws):
        return Targets(tokens_BS, positions_N=np.array([1]), labels_N=np.array([5]), weights_N=self.weights_N)


@pytest.mark.parametrize("weights", [[np.nan], [np.inf], [-1.0], [1.0, 1.0]])
def test_an_objective_whose_weights_are_none_is_named(parts, weights):
    with pytest.raises(SettingsError, match=r"objective weighed \(.*_Weighed\) gives weights_N that are not finite"):
        _batcher(parts[1], micro=8, ranks=1, rank=0).step(0, _alone(_Weighed(weights)))


def _by_row(batches):
    """Sets of what the micro-batches say of each row: its ids, attention kind, and targets."""
    found = []
    for batch in batches:
        causal = len(batch.input_ids_BS) if batch.attention is AttentionKind.CAUSAL else 0
        if isinstance(batch.attention, MixedRows):
            causal = batch.attention.causal.is_real_T.numel() // 64
        for row, ids in enumerate(batch.input_ids_BS):
            own = batch.positions_N // 64 == row
            targets = zip(
                (batch.positions_N[own] % 64).tolist(),
                batch.labels_N[own].tolist(),
                batch.objective_N[own].tolist(),
                strict=True,
            )
            found.append((tuple(ids.tolist()), row < causal, tuple(targets)))
    return sorted(found)


def test_any_cut_of_a_mixed_step_gives_each_row_the_same(parts):
    """Causal rows come first in a micro-batch, so rows are compared; micro-batches are of one kind or of both."""
    _, stream, mlm = parts
    mix = StepMix(("mlm", "clm"), (mlm, registry.build("clm", {}, CONTRACT_VOCABULARY)), (0.6, 0.4))
    whole = _batcher(stream, micro=8, ranks=1, rank=0, dealt=(5, 3)).step(3, mix)
    expected = _by_row(whole.micro_batches)
    assert sum(is_causal for _, is_causal, _ in expected) == 3
    assert {number for _, is_causal, targets in expected for *_, number in targets if is_causal} == {1}
    for micro, ranks in ((1, 1), (1, 2), (2, 2), (4, 2), (1, 4), (2, 4)):
        shares = [
            _batcher(stream, micro=micro, ranks=ranks, rank=rank, dealt=(5, 3)).step(3, mix) for rank in range(ranks)
        ]
        assert _by_row([batch for share in shares for batch in share.micro_batches]) == expected
        packed = np.stack([share.counts.packed() for share in shares])
        assert StepCounts.summed(packed) == whole.counts


def test_rows_are_dealt_by_step_and_not_in_turn():
    dealt = np.stack([deal(np.array([3, 5]), seed=7, step=step) for step in range(400)])
    assert (np.sort(dealt, axis=1) == [0] * 3 + [1] * 5).all()
    assert np.abs((dealt == 0).mean(axis=0) - 3 / 8).max() < 0.1
    assert (deal(np.array([3, 5]), seed=8, step=0) != dealt[0]).any()


def test_counts_are_of_tokens_and_targets(parts):
    _, stream, mlm = parts
    local = _batcher(stream, micro=4, ranks=1, rank=0).step(0, _alone(mlm))
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
        _batcher(stream, micro=8, ranks=1, rank=0).step(0, _alone(_Overwrites()))
    batches = EvaluationBatches(rows, num_rows=8, micro_batch_rows=8, seed=7)
    with pytest.raises(SettingsError, match="objective overwrites"):
        list(batches.of(_Overwrites()))


class TestEvaluationBatches:
    @pytest.mark.parametrize("num_ranks", [1, 2, 3])
    def test_each_row_is_covered_once_by_equally_many_full_batches(self, parts, num_ranks):
        rows, _, mlm = parts
        (alone,) = EvaluationBatches(rows, num_rows=7, micro_batch_rows=7, seed=7).of(mlm)
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
        assert {batch.input_ids_BS.shape for batch in in_order} == {(2, 64)}
        assert torch.equal(torch.cat([batch.input_ids_BS for batch in in_order])[:7], alone.input_ids_BS)
        assert torch.cat([batch.labels_N for batch in in_order]).tolist() == alone.labels_N.tolist()
        assert sum(batch.weight for batch in in_order) == alone.weight == len(alone.labels_N)

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
        (spare,) = batches.of(mlm)
        assert spare.weight == 0
        assert not spare.layout.is_real_T.any()
        # Not empty: a list of length 0 would be another graph.
        assert spare.labels_N.tolist() == [-1] * STATIC_TARGETS_MULTIPLE

    def test_their_masks_are_not_those_of_training(self, parts):
        rows, _, mlm = parts
        (batch,) = EvaluationBatches(rows, num_rows=8, micro_batch_rows=8, seed=7).of(mlm)
        numbers = np.arange(8)
        read = rows.read(numbers, np.zeros_like(numbers))
        training = mlm.build(read.tokens_BS, read.segments_BS, Draws(7, numbers, num_columns=64))
        assert batch.positions_N.tolist() != training.positions_N.tolist()
