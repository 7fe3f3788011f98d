"""The ranks of a run: joining and leaving the process group, and the few small exchanges of the training loop.

Host exchanges (counts, hashes, flags, messages) use a separate gloo group, so that on a GPU they neither wait for the
device nor make it wait, and so that ranks may wait in them for as long as another one has work to do.
"""

import atexit
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import _set_pg_timeout

from toolkit.core.errors import ToolkitError
from toolkit.core.files import descriptor_limit
from toolkit.engine.gpus import has_gpu
from toolkit.engine.rendezvous import meeting_place, release_store, store_on_loopback
from toolkit.engine.stalls import timeout_seconds
from toolkit.model.segments import to_device
from toolkit.parallel.groups import process_groups
from toolkit.parallel.launcher import alone, check_launcher, read_launcher, unreachable
from toolkit.parallel.topology import ParallelSettings, topology

_T = TypeVar("_T")

GatherNumbers = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
"""Gathers n numbers from each rank into (world_size, n) on all ranks; collective."""

# Ranks wait in a host exchange while only rank 0, or one machine, works: it hashes a checkpoint, packs the rows of a
# large corpus, writes to a slow disk. That may take arbitrarily long. If a rank dies meanwhile, `peers_watched` ends
# the others.
_HOST_TIMEOUT = timedelta(days=7)

_DATA_PARALLEL = ParallelSettings(tp=1, pp=1)

# Before torch 2.13 only the other name exists, about which 2.13 warns.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def has_joined() -> bool:
    """True if this process is in a process group."""
    return dist.is_initialized()


class Ranks:
    """This process among those of the run; construction is collective if a degree of model parallelism is above 1.

    `rank` and `world_size` count all processes; `data_rank` and `data_parallel_size` count copies of the model.
    """

    def __init__(self, parallel: ParallelSettings) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.topology = topology(self.rank, self.world_size, parallel)
        self.data_rank = self.topology.data_rank
        self.data_parallel_size = self.topology.dp
        self.groups = process_groups(self.topology)
        self.device = torch.device("cuda", torch.cuda.current_device()) if has_gpu() else torch.device("cpu")
        self._host_group = _host_group(dist.group.WORLD)

    def sum_counts(self, *counts: int) -> tuple[int, ...]:
        """Element-wise sum over all ranks."""
        total = torch.tensor(counts, dtype=torch.int64)
        dist.all_reduce(total, group=self._host_group)
        return tuple(int(count) for count in total)

    def sum_with_flags(
        self, values: Sequence[torch.Tensor], flags: Sequence[bool]
    ) -> tuple[list[float], tuple[bool, ...]]:
        """Sums of device scalars over copies of the model, in fp64; and for each flag whether any rank raises it. Takes
        one exchange and one wait.

        In each copy, only the values of the first rank of the last stage count: it has the head, and so the loss.
        """
        mine = torch.stack([value.detach().double() for value in values])
        if not self.topology.has_loss:
            mine = torch.zeros_like(mine)
        sent = torch.cat([mine, to_device(np.array(flags, dtype=np.float64), self.device)])
        dist.all_reduce(sent)
        sums = sent.tolist()
        return sums[: len(values)], tuple(count > 0 for count in sums[len(values) :])

    @contextmanager
    def gathering(self) -> Iterator[GatherNumbers]:
        """An all-gather over a separate group, for a thread that communicates while others do; collective."""
        group = dist.new_group(backend="gloo")
        try:
            yield partial(self._gather_numbers, group)
        finally:
            dist.destroy_process_group(group)

    def _gather_numbers(self, group: dist.ProcessGroup, mine: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        received = torch.empty(self.world_size * mine.size, dtype=torch.int64)
        _all_gather(received, torch.from_numpy(mine), group=group)
        return received.numpy().reshape(self.world_size, mine.size)

    def one_of_each_copy(self, gathered: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """From the lists of all ranks, (world_size, n), those of one rank of each copy of the model, by data rank."""
        by_place = gathered.reshape(self.topology.pp, self.topology.dp, self.topology.tp, -1)
        copies = by_place[0, :, 0]
        others = np.flatnonzero((by_place != copies[:, None]).any(axis=-1))
        if others.size:
            raise ToolkitError(f"rank {others[0]} read other rows than the other ranks of its copy of the model")
        return copies

    def gather(self, mine: _T) -> list[_T]:
        """Every rank's object, in rank order."""
        received: list[Any] = [None] * self.world_size
        dist.all_gather_object(received, mine, group=self._host_group)
        return received

    def gather_on_first(self, mine: _T) -> list[_T]:
        """Every rank's object, in rank order, on rank 0; empty on the others. Collective."""
        received: list[Any] = [None] * self.world_size if self.rank == 0 else []
        dist.gather_object(mine, received or None, dst=0, group=self._host_group)
        return received

    def broadcast(self, value: _T) -> _T:
        """Rank 0's object, on every rank."""
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, group=self._host_group)
        received: _T = box[0]
        return received

    def from_first_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of the rank with the same part of the model in the first copy, on the CPU. Collective."""
        if self.data_parallel_size == 1:
            return tensor
        sent = tensor.to(self.device)
        dist.broadcast(sent, group_src=0, group=self.groups.data)
        # A device that the model fills has room for one whole tensor, not for a parameter and its moments.
        return sent.cpu()

    def limit_waits(self) -> None:
        """Let host exchanges fail after torch's half hour: if ranks do not watch one another, one may be gone."""
        _set_pg_timeout(default_pg_timeout, self._host_group)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise the error of the first rank whose body fails, on every rank, so that all exit alike."""
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        # A number first: unpickling ten thousand objects takes half a second on each rank, and errors are rare.
        if self.sum_counts(int(error is not None)) == (0,):
            return
        failed = next(found for found in self.gather(_portable(error, self.rank)) if found is not None)
        if isinstance(failed, ToolkitError):
            failed.is_agreed = True
        raise failed from error


def join_ranks(parallel: ParallelSettings = _DATA_PARALLEL) -> Ranks:
    """Join the process group that the launcher described in the environment; a group of one without a launcher.

    The group stays until the process ends, since DeepSpeed keeps references to it; a second call gets the same one.
    """
    if not has_gpu():
        # Otherwise DeepSpeed warns, on each rank, that it found no accelerator.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    if dist.is_initialized():
        return Ranks(parallel)
    check_launcher()
    descriptor_limit()
    # A rank connects only to those it sends to. Otherwise each gloo group has a socket for each pair of ranks, and two
    # such groups of 512 ranks exceed the 1,024 open files that most systems allow.
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    # DeepSpeed calls collectives by names that torch 2.13 renames, and torch warns about each, on each rank.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # A group needs none of its extensions. DeepSpeed would try the compiler for each of them, and on a CPU compile a
    # shared-memory all-reduce (most of a minute) that only inference uses.
    vars(deepspeed.ops).setdefault("__compatible_ops__", {})
    launched = read_launcher()
    if not launched.is_launched:
        # Variables that DeepSpeed and torch expect, in a process without a launcher.
        os.environ.update(alone(port=0))
    if has_gpu():
        if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
            # Micro-batches differ in their targets, and fixed-size blocks leave gaps. Read at the first allocation.
            os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        torch.cuda.set_device(launched.local_rank)
    # Groups created later have torch's timeouts, not that of the first.
    timeout = timedelta(seconds=timeout_seconds())
    vars(distributed_c10d).update(default_pg_timeout=timeout, default_pg_nccl_timeout=timeout)
    try:
        # A single rank needs no port.
        method, _server = meeting_place(launched), store_on_loopback(launched) if launched.world_size > 1 else None
        deepspeed.init_distributed(dist_backend="nccl" if has_gpu() else "gloo", init_method=method, verbose=False)
    except (OSError, dist.DistNetworkError) as error:
        raise unreachable(str(error)) from None
    release_store()
    # Always: without it a ZeRO-3 process aborts at exit.
    atexit.register(leave_ranks)
    return Ranks(parallel)


def leave_ranks() -> None:
    """Leave the process group, at the end of the process."""
    if dist.is_initialized():
        _host_group.cache_clear()
        dist.destroy_process_group()


@cache
def _host_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """A group for host exchanges among the ranks of `world`; created collectively, on first use."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    # Long waits only after this: ranks connect lazily, here; until then they are not watched, and one may fail.
    dist.all_reduce(torch.zeros(1), group=group)
    _set_pg_timeout(_HOST_TIMEOUT, group)
    return group


def _portable(error: Exception | None, rank: int) -> ToolkitError | OSError | None:
    """An error that can be sent to another process: the toolkit's and the system's unchanged, others as text."""
    if error is None or isinstance(error, ToolkitError | OSError):
        return error
    return ToolkitError(f"rank {rank} failed: {type(error).__name__}: {error}")
