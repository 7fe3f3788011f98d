"""What a rank of two holds of the weights it shares, counted in bytes of live tensors."""

import gc
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support.runs import RunCase, write_run
from toolkit.checkpoint.read import open_checkpoint
from toolkit.model import Encoder
from toolkit.parallel.shares import allocate_
from toolkit.parallel.tensor_parallel import share_weights_
from toolkit.testing.distributed import run_distributed

# Embedding and head are nearly all of the model.
_MODEL = ("model.vocab_size=8192", "parallel.tp=2", "train.micro_batch_rows=1", "train.global_batch_rows=1")
_SHORT = ("schedule.0.steps=1", "schedule.1.steps=1", "lr.warmup_steps=0", "lr.decay_steps=0")
_WIDTH = 32
_TABLE = 8192 * _WIDTH * 4
"""Bytes of the embedding, and of the head."""


class LiveBytes(TorchDispatchMode):
    """Bytes of the tensors that the body makes or touches and that are alive, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count what is new."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage.data_ptr()
        if key and key not in self._alive:
            self._alive[key] = storage.nbytes()
            weakref.finalize(storage, self._forget, key)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self._alive.pop(key, 0)


@dataclass(frozen=True)
class Held:
    """Bytes that a rank holds while it builds, loads and saves, and the shapes of large matrices that it ends with."""

    run_file: str
    checkpoint: str
    folder: str

    def __call__(self) -> dict[str, Any]:
        from toolkit.engine.engine import Engine
        from toolkit.engine.ranks import join_ranks
        from toolkit.engine.saving import AsyncCheckpoint, load_checkpoint
        from toolkit.run.load import declare_run
        from toolkit.run.resolve import resolve_run

        declared = declare_run(self.run_file, (*_MODEL, *_SHORT, f"run.dir={self.folder}/unused"))
        run, ranks = resolve_run(declared, ds_config="zero1", num_ranks=2), join_ranks(declared.settings.parallel)
        found, peaks = open_checkpoint(self.checkpoint), dict[str, Any]()
        with LiveBytes() as live:
            with torch.device("meta"):
                encoder = Encoder(run.settings.model)
            share_weights_(encoder, ranks.groups.tensor)
            allocate_(encoder, 1, settings=encoder.settings)
        peaks["build"], peaks["built"] = live.peak, live.now
        engine = Engine(encoder, config=run.division.ds_config, optimizer=run.settings.train, ranks=ranks)
        with LiveBytes() as live:
            load_checkpoint(engine, found)
        peaks["load"], peaks["loaded"] = live.peak, live.now
        tokenizer = found.path / "tokenizer"
        with LiveBytes() as live:
            saved = AsyncCheckpoint(engine, Path(self.folder), manifest=found.manifest, tokenizer_folder=tokenizer)
            while not saved.advance():
                pass
        peaks["save"], peaks["saved"] = live.peak, live.now
        gc.collect()
        with warnings.catch_warnings(action="ignore"):
            tensors = [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
        peaks["whole"] = [tuple(one.shape) for one in tensors if one.dim() == 2 and one.numel() * 4 >= _TABLE]
        peaks["share"] = sum(parameter.numel() for parameter in engine.named_parameters().values()) * 4
        engine.close()
        return peaks


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of both ranks."""
    folder = tmp_path_factory.mktemp("held")
    run_file = str(write_run(folder))
    run_distributed([RunCase(run_file, "zero1", (*_MODEL, *_SHORT, f"run.dir={folder / 'run'}"))], world_size=2)
    checkpoint = str(open_checkpoint(folder / "run").path)
    return run_distributed([Held(run_file, checkpoint, str(folder / "saved"))], world_size=2)[0]


def test_while_building_one_weight_at_a_time_is_whole(held: list[dict[str, Any]]) -> None:
    for rank in held:
        assert rank["built"] == pytest.approx(rank["share"], rel=0.01)
        assert rank["build"] <= 1.01 * (rank["share"] + _TABLE)


def test_while_loading_one_weight_with_its_moments_is_whole(held: list[dict[str, Any]]) -> None:
    """Beyond the share, its master copy and moments: three whole tensors, and the half of each on its way there."""
    for rank in held:
        assert rank["loaded"] <= 4.01 * rank["share"]
        assert rank["load"] <= rank["loaded"] + 4.6 * _TABLE


def test_while_saving_a_rank_holds_what_it_writes_and_one_weight_more(held: list[dict[str, Any]]) -> None:
    """Of the two large matrices each rank writes one; of the other it holds shares, parts coming in, and the whole."""
    for rank in held:
        assert rank["save"] <= rank["saved"] + 3.1 * _TABLE + 5.7 * _TABLE


def test_after_that_nothing_is_whole(held: list[dict[str, Any]]) -> None:
    assert [rank["whole"] for rank in held] == [[], []]
