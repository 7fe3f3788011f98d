"""Micro-batches are a function of (step, objective) and the share, and nothing else."""

import threading
from contextlib import closing

import numpy as np
import pytest
import torch

from tests.support.runs import write_run
from toolkit.core.draws import Draws
from toolkit.core.errors import CorpusError
from toolkit.data import Corpus, Order, RowStream, open_rows
from toolkit.objectives import registry
from toolkit.parallel.topology import batch_layout
from toolkit.run import load_run
from toolkit.training.batching import Batcher, evaluation_batches

_CPU = torch.device("cpu")


@pytest.fixture
def parts(tmp_path):
    settings = load_run(str(write_run(tmp_path)))
    corpus = Corpus(settings.data.train)
    rows = open_rows(corpus, settings.data, seed=7)
    order = Order(rows.num_rows, seed=7, shuffle="global")
    return rows, RowStream(rows, order), registry.build("mlm", {}, corpus.vocabulary)


def _batcher(stream, *, micro, ranks, rank, has_static_shapes=False):
    layout = batch_layout(8, micro, data_parallel=ranks)
    return Batcher(stream, layout, rank=rank, seed=7, device=_CPU, has_static_shapes=has_static_shapes)


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


class TestSteps:
    """The next share is built while one is worked on; nothing else changes."""

    def test_they_are_what_each_step_alone_gives(self, parts):
        _, stream, mlm = parts
        batcher = _batcher(stream, micro=4, ranks=1, rank=0)
        shares = list(batcher.steps(2, 7, lambda step: mlm))
        for step, share in enumerate(shares, start=2):
            alone = batcher.step(step, mlm)
            assert share.counts == alone.counts
            for ours, theirs in zip(share.micro_batches, alone.micro_batches, strict=True):
                assert torch.equal(ours.input_ids_BS, theirs.input_ids_BS)
                assert torch.equal(ours.labels_N, theirs.labels_N)
        assert len(shares) == 5
        assert list(batcher.steps(3, 3, lambda step: mlm)) == []

    def test_the_next_is_built_while_one_is_held(self, parts, monkeypatch):
        batcher, mlm = _batcher(parts[1], micro=8, ranks=1, rank=0), parts[2]
        begun = {step: threading.Event() for step in range(4)}
        build = batcher.step
        monkeypatch.setattr(batcher, "step", lambda step, objective: begun[step].set() or build(step, objective))
        with closing(batcher.steps(0, 4, lambda step: mlm)) as shares:
            next(shares)
            assert begun[1].wait(20)
            assert not begun[2].is_set()
        assert not any(thread.name.startswith("ThreadPool") for thread in threading.enumerate())

    def test_on_a_gpu_the_thread_builds_for_the_ranks_own(self, parts, monkeypatch):
        device, chosen = torch.device("cuda", 3), []
        batcher = Batcher(
            parts[1], batch_layout(8, 8, data_parallel=1), rank=0, seed=7, device=device, has_static_shapes=True
        )
        monkeypatch.setattr(batcher, "step", lambda step, objective: step)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append((threading.get_ident(), device)))
        assert list(batcher.steps(0, 3, lambda step: parts[2])) == [0, 1, 2]
        ((thread, found),) = chosen
        assert (thread == threading.get_ident(), found) == (False, device)

    def test_a_fault_shows_at_its_own_step(self, parts, monkeypatch):
        batcher, mlm = _batcher(parts[1], micro=8, ranks=1, rank=0), parts[2]
        build = batcher.step

        def faulty(step, objective):
            if step == 1:
                raise CorpusError("shard-00000.bin is damaged")
            return build(step, objective)

        monkeypatch.setattr(batcher, "step", faulty)
        shares = batcher.steps(0, 4, lambda step: mlm)
        assert next(shares).num_targets
        with pytest.raises(CorpusError, match="is damaged"):
            next(shares)


def test_padded_target_lists_hold_the_same_targets(parts):
    _, stream, mlm = parts
    plain = _batcher(stream, micro=8, ranks=1, rank=0).step(0, mlm)
    padded = _batcher(stream, micro=8, ranks=1, rank=0, has_static_shapes=True).step(0, mlm)
    labels = padded.micro_batches[0].labels_N
    assert labels.numel() % 256 == 0
    assert padded.num_targets == plain.num_targets
    assert torch.equal(labels[labels >= 0], plain.micro_batches[0].labels_N)
    assert (labels < 0).sum() == labels.numel() - plain.num_targets


def test_counts_are_of_tokens_and_targets(parts):
    _, stream, mlm = parts
    local = _batcher(stream, micro=4, ranks=1, rank=0).step(0, mlm)
    rows = stream.at(np.arange(8))
    assert local.num_tokens == np.count_nonzero(rows.segments_BS)
    assert local.num_targets == sum(batch.labels_N.numel() for batch in local.micro_batches)
    assert local.row_hashes.shape == (8, 8)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_covers_each_row_once_with_equally_many_batches(parts, world_size):
    rows, _, mlm = parts
    shares = [
        list(
            evaluation_batches(
                rows, mlm, num_rows=7, micro_batch_rows=2, rank=rank, world_size=world_size, seed=7, device=_CPU
            )
        )
        for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1
    alone = evaluation_batches(rows, mlm, num_rows=7, micro_batch_rows=7, rank=0, world_size=1, seed=7, device=_CPU)
    expected = sum(count for _, count in alone)
    assert sum(count for share in shares for _, count in share) == expected


def test_masks_of_validation_are_not_those_of_training(parts):
    rows, _, mlm = parts
    options = {"num_rows": 8, "micro_batch_rows": 8, "rank": 0, "world_size": 1, "device": _CPU}
    ((batch, _),) = evaluation_batches(rows, mlm, seed=7, **options)
    numbers = np.arange(8)
    read = rows.read(numbers, np.zeros_like(numbers))
    training = mlm.build(read.tokens_BS, read.segments_BS, Draws(7, numbers, num_columns=64))
    assert batch.positions_N.tolist() != training.positions_N.tolist()
