"""Canonical checkpoints of an engine: written by all ranks at once, each writing its share of the parameters by name.

Our own threads write them during training: the asynchronous engines of DeepSpeed and torch write their own formats
(pickles, a planner's metadata) without hashes, and torch's exchanges objects in the background. A thread is enough,
because hashing and writing release the interpreter lock, and ends with its process, unlike a second process.
"""

import heapq
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.checkpoint.read import Checkpoint, ParameterState
from toolkit.checkpoint.write import PartEntry, abandon, begin, finish, merge_parts, write_part
from toolkit.core.errors import CheckpointError
from toolkit.engine.engine import Engine
from toolkit.engine.optimizer_state import collect, restore, stage_sizes, whole_shape


class AsyncCheckpoint:
    """A checkpoint that is written while training continues. It appears complete or not at all.

    The tensors are copied at once, and a thread on each rank hashes and writes its part. When all have, a thread on
    rank 0 adds tokenizer and manifest and makes the checkpoint visible. These threads do not communicate, since their
    collectives and those of training would interleave differently on each rank: ranks agree in `advance`. Raises
    `CheckpointError` on every rank if the folder cannot be created.

    Args:
        engine: on all ranks, between two steps; may train again once this returns. Collective.
        root: the run's checkpoints folder, shared by all ranks; nothing else is being written there.
        manifest: the state of the run; its `tensors` and `files` are filled in here.
    """

    def __init__(self, engine: Engine, root: Path, *, manifest: CheckpointManifest, tokenizer_folder: Path) -> None:
        self._ranks, self._manifest, self._tokenizer_folder = engine.ranks, manifest, tokenizer_folder
        rank, world = self._ranks.rank, self._ranks.world_size
        with self._ranks.together():
            mine = begin(root, manifest.step) if rank == 0 else None
        folder = self._ranks.broadcast(mine)
        assert folder is not None
        self._folder = folder
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        try:
            states = list(collect(engine, is_mine=_own_part(engine).__contains__))
        except BaseException:
            self.abandon()
            raise
        self._part = self._thread.submit(write_part, folder, part=rank, num_parts=world, parameters=states)
        self._finished: Future[None] | None = None

    @property
    def step(self) -> int:
        """Step of the checkpoint."""
        return self._manifest.step

    @property
    def is_writing(self) -> bool:
        """True if this rank's thread is still working; not collective."""
        return not (self._part if self._finished is None else self._finished).done()

    def advance(self) -> bool:
        """Wait for the threads of all ranks and start the next ones; return whether it is visible. Collective.

        Raise `CheckpointError` on every rank if any could not write; earlier checkpoints are untouched.
        """
        try:
            if self._finished is None:
                with self._ranks.together():
                    part = self._part.result()
                self._finished = self._thread.submit(self._finish, merge_parts(self._ranks.gather_on_first(part)))
                return False
            with self._ranks.together():
                self._finished.result()
        except BaseException:
            self.abandon()
            raise
        self._thread.shutdown()
        return True

    def abandon(self) -> None:
        """Discard it, once this rank's thread has ended; not collective."""
        self._thread.shutdown()
        if self._ranks.rank == 0:
            abandon(self._folder)

    def _finish(self, merged: PartEntry) -> None:
        if self._ranks.rank == 0:
            whole = self._manifest.model_copy(update={"tensors": merged.tensors, "files": merged.files})
            finish(self._folder, whole, tokenizer_folder=self._tokenizer_folder)


def _own_part(engine: Engine) -> set[str]:
    """Names of the parameters that this rank writes: its stage's, largest first, each given to the least loaded rank.

    Split by count, one rank could get both the embedding and the head, which are most of a small model.
    """
    topology = engine.ranks.topology
    loads, own = [(0, writer) for writer in range(topology.ranks_per_stage)], set()
    for name, size in sorted(stage_sizes(engine).items(), key=lambda item: -item[1]):
        load, writer = loads[0]
        heapq.heapreplace(loads, (load + size, writer))
        if writer == topology.rank % topology.ranks_per_stage:
            own.add(name)
    return own


def load_checkpoint(engine: Engine, checkpoint: Checkpoint, *, moments: Literal["keep", "reset"] = "keep") -> None:
    """Restore weights and optimizer into a fresh engine of any layout; collective.

    The ranks of one copy of the model read, and send to the ranks with the same part in other copies: ten thousand that
    read each file would occupy shared storage for an hour. The moments are restored too, or start at zero. Raise
    `CheckpointError` on every rank if the parameters are not the engine's, or a rank could not read one.
    """
    ranks, own, expected = engine.ranks, engine.named_parameters(), set(engine.parameter_names)
    found = checkpoint.manifest.tensors.keys()
    if expected != found:
        differing = ", ".join(sorted(expected ^ found)[:5])
        raise CheckpointError(
            f"{checkpoint.path} does not have the parameters of the model; they differ in {differing}. "
            "Use a checkpoint of a model of this shape."
        )

    failures: list[Exception] = []

    def read(name: str) -> ParameterState | None:
        if name not in own:
            return None
        shape, tensors = whole_shape(own[name]), list[torch.Tensor]()
        if ranks.data_rank == 0 and not failures:
            # Raised at the end, since a rank that failed alone would leave the others in a collective of `restore`.
            try:
                state = checkpoint.fresh_parameter(name) if moments == "reset" else checkpoint.parameter(name)
                assert state.weight.shape == shape, f"{name} has the shape {tuple(state.weight.shape)}"
                tensors = list(state.tensors)
            except Exception as error:
                failures.append(error)
        sent = tensors or (torch.empty(shape) for _ in range(3))
        return ParameterState(name, *(ranks.from_first_copy(tensor) for tensor in sent))

    restore(engine, read, optimizer_step=0 if moments == "reset" else checkpoint.manifest.optimizer_step)
    with ranks.together():
        if failures:
            raise failures[0]
