"""Steps are built and agreed on a step ahead, in a thread; nothing but the loss is exchanged on the main one."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.support.runs import RunCase, write_run
from toolkit.core.errors import CorpusError, ToolkitError
from toolkit.data import Corpus, Order, RowStream, open_rows
from toolkit.objectives import registry
from toolkit.objectives.mixture import StepMix
from toolkit.parallel.topology import batch_plan
from toolkit.run import load_run
from toolkit.testing.distributed import run_distributed
from toolkit.testing.models import tiny_settings
from toolkit.training.batching import Batcher, StepRows
from toolkit.training.steps_ahead import steps_ahead

_CPU = torch.device("cpu")


@dataclass
class _Alone:
    """The only rank; or one that hears another besides."""

    device: torch.device = _CPU
    heard: tuple[int, ...] = ()
    """What the other one says in place of the beginning of ours."""
    gathered: Callable[[], object] = lambda: None

    @contextmanager
    def gathering(self):
        yield self.gather

    def gather(self, mine):
        self.gathered()
        return np.stack([mine, [*self.heard, *mine[len(self.heard) :]]]) if self.heard else mine[None]

    def one_of_each_copy(self, gathered):
        return gathered

    def together(self):
        return nullcontext()


@pytest.fixture
def parts(tmp_path):
    settings = load_run(str(write_run(tmp_path)))
    corpus = Corpus(settings.data.train)
    rows = open_rows(corpus, settings.data, seed=7)
    stream = RowStream(rows, Order(rows.num_rows, seed=7, shuffle="global"))
    layout = batch_plan(8, 4, data_parallel=1)
    batcher = Batcher(
        lambda step: StepRows(stream, ["corpus"], 8 * step, layout, np.array([8])),
        data_rank=0,
        seed=7,
        device=_CPU,
        targets_multiple=1,
        model=tiny_settings(),
    )
    return batcher, StepMix(("mlm",), (registry.build("mlm", {}, corpus.vocabulary),), (1.0,))


def test_they_are_what_each_step_alone_gives(parts):
    batcher, mlm = parts
    agreed = list(steps_ahead(batcher, _Alone(), lambda step: mlm, start=2, stop=7))
    for step, ours in enumerate(agreed, start=2):
        alone = batcher.step(step, mlm)
        assert ours.counts == alone.counts
        assert np.array_equal(ours.row_hashes_RL8, alone.row_hashes[None])
        for mine, theirs in zip(ours.micro_batches, alone.micro_batches, strict=True):
            assert torch.equal(mine.input_ids_BS, theirs.input_ids_BS)
            assert torch.equal(mine.labels_N, theirs.labels_N)
    assert len(agreed) == 5
    assert list(steps_ahead(batcher, _Alone(), lambda step: mlm, start=3, stop=3)) == []


def test_seconds_of_each_rank_travel_with_the_counts(parts):
    batcher, mlm = parts
    told = iter([0.25, 0.5])
    ranks = _Alone(heard=(0, 1_750_000))
    coming = steps_ahead(batcher, ranks, lambda step: mlm, start=0, stop=1, own_seconds=lambda: next(told))
    assert next(coming).own_seconds_W == [0.25, 1.75]


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_step_that_waits_for_data_is_held_up_by_the_rank_that_builds_them(parts, is_ours):
    batcher, mlm = parts

    def wait(step=None):
        time.sleep(0.3)
        return mlm

    mix_at, gathered = (wait, lambda: None) if is_ours else (lambda step: mlm, wait)
    coming = steps_ahead(batcher, _Alone(gathered=gathered), mix_at, start=0, stop=3)
    own = [step.own_seconds_W[0] for step in coming]
    assert (own[2] > 0.25) == is_ours


def test_the_next_is_built_and_told_while_one_is_held(parts):
    batcher, mlm = parts
    there_before = set(threading.enumerate())
    told = [threading.Event() for _ in range(4)]
    numbers = iter(told)
    ranks = _Alone(gathered=lambda: next(numbers).set())
    with closing(steps_ahead(batcher, ranks, lambda step: mlm, start=0, stop=4)) as coming:
        next(coming)
        assert told[1].wait(20)
        assert not told[2].is_set()
    assert set(threading.enumerate()) <= there_before


def test_on_a_gpu_the_thread_builds_for_the_ranks_own(parts, monkeypatch):
    device, chosen = torch.device("cuda", 3), []
    batcher, mlm = parts
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append((threading.get_ident(), device)))
    assert len(list(steps_ahead(batcher, _Alone(device), lambda step: mlm, start=0, stop=3))) == 3
    ((thread, found),) = chosen
    assert (thread == threading.get_ident(), found) == (False, device)


def test_a_fault_shows_at_its_own_step_and_is_told_to_the_others(parts, monkeypatch):
    batcher, mlm = parts
    build = batcher.step

    def faulty(step, objective):
        if step == 1:
            raise CorpusError("shard-00000.bin is damaged")
        return build(step, objective)

    monkeypatch.setattr(batcher, "step", faulty)
    coming = steps_ahead(batcher, _Alone(), lambda step: mlm, start=0, stop=4)
    assert next(coming).counts.targets
    with pytest.raises(CorpusError, match="is damaged"):
        next(coming)


def test_an_objective_that_cannot_be_had_is_a_fault_of_its_step(parts):
    batcher, mlm = parts
    coming = steps_ahead(batcher, _Alone(), {0: mlm}.__getitem__, start=0, stop=2)
    assert next(coming).counts.targets
    with pytest.raises(KeyError):
        next(coming)


def test_a_step_that_another_rank_could_not_build_is_not_run(parts):
    batcher, mlm = parts
    assert list(steps_ahead(batcher, _Alone(heard=(1,)), lambda step: mlm, start=0, stop=4)) == []


_HOST_EXCHANGES = ("sum_counts", "gather", "broadcast", "_gather_numbers", "sum_with_flags")


@dataclass(frozen=True)
class CountsExchanges:
    """A run; gives its rows of metrics, and how often each exchange was made in each thread between two steps."""

    run_file: str
    folder: str
    stops_at: int | None = None

    def __call__(self):
        from toolkit.engine.engine import Engine
        from toolkit.engine.ranks import Ranks, join_ranks
        from toolkit.training.pretrain import StopRequest

        rank, main = join_ranks().rank, threading.current_thread()
        counts: list[Counter[tuple[str, str]]] = [Counter()]
        train_step = Engine.train_step

        def begins(engine, *arguments, **named):
            counts.append(Counter())
            return train_step(engine, *arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "train_step", begins)
            for name in _HOST_EXCHANGES:
                patch.setattr(Ranks, name, _counted(getattr(Ranks, name), main, counts))
            if self.stops_at is not None and rank == 3:
                patch.setattr(StopRequest, "__call__", lambda request: len(counts) > self.stops_at)
            overrides = (f"run.dir={self.folder}", "train.micro_batch_rows=1", "checkpoint.every=100")
            outcome, lines = RunCase(self.run_file, "zero1", overrides)()
        return outcome, lines, counts


def _counted(exchange, main, counts):
    def counting(*arguments, **named):
        where = "main" if threading.current_thread() is main else "ahead"
        counts[-1][where, exchange.__name__] += 1
        return exchange(*arguments, **named)

    return counting


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ahead")
    run_file = str(write_run(folder, phase_steps=5))
    cases = [
        CountsExchanges(run_file, str(folder / "whole")),
        CountsExchanges(run_file, str(folder / "stopped"), stops_at=3),
    ]
    return run_distributed(cases, world_size=4)


def test_a_plain_step_exchanges_only_the_loss_on_the_main_thread(four_ranks):
    for _, _, counts in four_ranks[0]:
        # The first and the last step of a phase are evaluated, and the last one of the run is saved.
        for step in (2, 3, 7, 8):
            made = counts[step]
            assert made.pop(("main", "sum_with_flags")) == 1
            assert {where for where, _ in made} <= {"ahead"}
        ahead = sum(made["ahead", "_gather_numbers"] for made in counts)
        assert ahead == 10


def test_a_stop_that_one_rank_hears_of_stops_all_after_the_step(four_ranks):
    whole, stopped = four_ranks
    assert [outcome for outcome, _, _ in stopped] == ["stopped at step 3"] * 4
    losses = [[line["loss"] for line in lines if "loss" in line] for _, lines, _ in (whole[0], stopped[0])]
    assert losses[1] == losses[0][:3]


def test_ranks_of_one_copy_that_read_other_rows_end_the_run():
    from toolkit.engine.ranks import Ranks
    from toolkit.parallel.topology import ParallelSettings, topology

    ranks = Ranks.__new__(Ranks)
    ranks.topology = topology(0, 4, ParallelSettings(tp=2, pp=1))
    told = np.array([[1, 2], [1, 2], [3, 4], [3, 4]])
    assert ranks.one_of_each_copy(told).tolist() == [[1, 2], [3, 4]]
    told[3, 1] = 5
    with pytest.raises(ToolkitError, match="rank 3 read other rows than the other ranks of its copy"):
        ranks.one_of_each_copy(told)
