"""Where a rank is, and whether it waits too long for others in a collective of a step; checked from another thread.

A rank that hangs cannot report it, and torch says of those that wait for it only that they timed out; on GPUs it ends
them silently. So the stacks of the rank's own threads are inspected.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from traceback import walk_stack
from types import FrameType

from torch.distributed import distributed_c10d

Stack = Sequence[tuple[str, int, str]]
"""File, line and function of each frame, innermost first."""

_SOURCE = f"{Path(__file__).resolve().parents[2]}/"
# Share of a collective's time limit: torch's own timeout, which names no rank, comes later.
_SHARE = 0.9
# Only in these functions: other exchanges may wait for as long as some rank has work to do.
_IN_STEP = {"train_step", "loss_sum", "_gather_numbers", "measure_speed"}
_COLLECTIVES = ("/torch/distributed/", "/deepspeed/comm/")
# The last is torch.cuda's, of a device, a stream or an event: DeepSpeed uses it to wait for ZeRO's collectives.
_WAITS_FOR_DEVICE = {"sum_with_flags", "_update", "synchronize"}


def timeout_seconds() -> float:
    """Time limit of the rendezvous and of each collective, after which DeepSpeed and torch end the run."""
    return 60 * float(os.environ.get("DEEPSPEED_TIMEOUT", "10"))


def limit_seconds() -> float:
    """Seconds that a rank waits in a collective of a step before it names the ranks that it is waiting for."""
    return _SHARE * timeout_seconds()


class StallClock:
    """Time since this rank began its last collective."""

    def __init__(self) -> None:
        self._count, self._since = 0, time.monotonic()

    def has_stalled(self) -> bool:
        """True if this rank has waited too long; call it every second or so."""
        count = 0
        for group in list(distributed_c10d._world.pg_names):
            with suppress(RuntimeError):
                count += group._get_sequence_number_for_group()  # type: ignore[attr-defined]
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        return time.monotonic() - self._since > limit_seconds() and not place_of_rank()


def place_of_rank() -> str:
    """Where this rank is working; empty while it waits in a collective of a step."""
    stacks = {thread: _stack(frame) for thread, frame in sys._current_frames().items()}
    return place(stacks.pop(threading.main_thread().ident or 0), list(stacks.values()))


def place(main: Stack, others: Sequence[Stack]) -> str:
    """`place_of_rank`, from the stacks of the main thread and of others, one of which may do what it waits for."""
    stack, in_main = main, {name for _, _, name in main}
    if {"steps_ahead", "result"} <= in_main:
        stack = next((other for other in others if any(name == "_agree" for _, _, name in other)), main)
    elif "_engine_run_backward" in in_main:
        # On a GPU, the backward pass, with DeepSpeed's work in it, runs in a thread of torch.
        stack = next((other for other in others if any("/deepspeed/" in file for file, _, _ in other)), main)
    names = {name for _, _, name in stack}
    is_waiting = names & _WAITS_FOR_DEVICE or any(part in file for file, _, _ in stack for part in _COLLECTIVES)
    if is_waiting and (names | in_main) & _IN_STEP:
        return ""
    file, line, name = next((frame for frame in stack if frame[0].startswith(f"{_SOURCE}toolkit/")), stack[0])
    return f"is at {file.removeprefix(_SOURCE)}:{line} in {name}"


def _stack(frame: FrameType) -> Stack:
    return [(at.f_code.co_filename, line, at.f_code.co_name) for at, line in walk_stack(frame)]
