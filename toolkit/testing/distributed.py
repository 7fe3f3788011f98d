"""Multi-rank tests: ranks are forked from a server that has imported everything, one group per list of cases.

A launch through `deepspeed` takes 10 seconds, nearly all imports; a fork from a warm server takes less than one. Cases
run one after another in one process group; DeepSpeed leaks a little with each engine, so keep a list to about 20.
"""

import contextlib
import gc
import multiprocessing
import os
import random
import resource
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from typing import Any

Case = Callable[[], Any]
"""Picklable callable that runs on every rank, with RANK and WORLD_SIZE in the environment; its result is returned."""

_PRELOADED = [
    "torch._dynamo",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "toolkit.training",
    # Imported by an engine when it starts.
    "setuptools",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.python_gc",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.utils.pin_memory",
    "toolkit.engine.pipeline",
    "torch.profiler._cupti_monitor",
    # Imported by a run for its objectives, and for its progress bar.
    "toolkit.objectives.clm",
    "toolkit.objectives.mlm",
    "rich.console",
    # Imported by test files, which each rank imports for its cases: two seconds.
    "pytest",
    "toolkit.testing.models",
]
_context: ForkServerContext | None = None
cpu_seconds = 0.0
"""CPU seconds used by the server's processes so far; they are not counted as children of this process."""


def warm_server() -> ForkServerContext:
    """The context for starting processes with everything imported; the first use starts the server."""
    global _context
    if _context is None:
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload(_PRELOADED)
    return _context


def run_distributed(cases: Sequence[Case], *, world_size: int, timeout: float = 600.0) -> list[list[Any]]:
    """Run cases on `world_size` CPU ranks over gloo.

    Returns:
        For each case, the results of all ranks in rank order.

    Raises:
        AssertionError: a case failed on some rank, with that rank's traceback; later cases were not run.
    """
    global cpu_seconds
    context = warm_server()
    receivers, processes = [], []
    port = _free_port()
    for rank in range(world_size):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(rank, world_size, port, list(cases), sender), daemon=True)
        process.start()
        sender.close()
        receivers.append(receiver)
        processes.append(process)
    try:
        deadline = time.monotonic() + timeout
        answers = [_answer(receiver, deadline) for receiver in receivers]
    finally:
        for process in processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
    failures = [answer for answer in answers if isinstance(answer, str)]
    assert not failures, "\n".join(failures)
    by_rank, seconds = zip(*(answer for answer in answers if not isinstance(answer, str)), strict=True)
    cpu_seconds += sum(seconds)
    return [list(results) for results in zip(*by_rank, strict=True)]


def _answer(receiver: Any, deadline: float) -> tuple[list[Any], float] | str:
    if not receiver.poll(max(0.0, deadline - time.monotonic())):
        return "a rank did not answer in time"
    try:
        answer: tuple[list[Any], float] | str = receiver.recv()
    except EOFError:
        return "a rank ended without an answer"
    return answer


def _rank(rank: int, world_size: int, port: int, cases: list[Case], sender: Any) -> None:
    import torch

    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
        DS_ACCELERATOR="cpu",
    )
    # The server may have it from a test that ran as a rank itself.
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    torch.set_num_threads(1)
    # The server's imports are never freed. Unfrozen, they cost each engine 0.25 s, as it collects garbage at its start.
    gc.freeze()
    # An engine checks whether a caller froze objects; counting them all takes nearly as long.
    gc.get_freeze_count = lambda: 1
    # Tests need no protection from power loss; the system keeps what a killed process wrote.
    os.fsync = lambda fd: None
    from toolkit.engine.ranks import join_ranks, leave_ranks

    try:
        join_ranks()
        results = [case() for case in cases]
        leave_ranks()
    except BaseException:
        sender.send(f"rank {rank} of {world_size}:\n{traceback.format_exc()}")
        # The other ranks may wait for this one in a collective: exit, so that the test ends them.
        os._exit(1)
    sender.send((results, cpu_seconds_here()))


def cpu_seconds_here() -> float:
    """CPU seconds of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _free_port() -> int:
    """A port below the ephemeral range, so that no client can get it before rank 0 listens.

    Drawn at random, so that groups of several test processes do not collide.
    """
    draws = random.SystemRandom()
    while True:
        port = draws.randrange(16_384, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
