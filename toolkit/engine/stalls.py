"""Where a rank is, and whether it waits too long for others in a collective of a step; another thread of it looks.

A rank that hangs cannot report it, and of those that wait for it torch says only that they timed out; on GPUs it ends
them silently. So the stacks of the rank's own threads are looked at.
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
# Of what a collective may take: torch's own timeout, which names no rank, comes later.
_SHARE = 0.9
# Only in these functions: other exchanges may wait for as long as some rank has work to do.
_IN_STEP = {"train_step", "loss_sum", "_gather_numbers", "measure_speed"}
_COLLECTIVES = ("/torch/distributed/", "/deepspeed/comm/")
# The last is torch.cuda's, of a device, a stream or an event: DeepSpeed waits so for collectives of ZeRO.
_WAITS_FOR_DEVICE = {"sum_with_flags", "_update", "synchronize"}


def timeout_seconds() -> float:
    """Time limit of the rendezvous and of each collective, after which DeepSpeed and torch end the run."""
    return 60 * float(os.environ.get("DEEPSPEED_TIMEOUT", "10"))


def limit_seconds() -> float:
    """How long a rank waits in a collective of a step before it names the ranks that it is waiting for."""
    return _SHARE * timeout_seconds()


class StallClock:
    """Time since this rank began its last collective."""

    def __init__(self) -> None:
        self._count, self._since = 0, time.monotonic()

    def has_stalled(self) -> bool:
        """True where this rank has waited for too long; to be asked every second or so."""
        count = 0
        for group in list(distributed_c10d._world.pg_names):
            with suppress(RuntimeError):
                count += group._get_sequence_number_for_group()  # type: ignore[attr-defined]
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        return time.monotonic() - self._since > limit_seconds() and not place_of_rank()


def place_of_rank() -> str:
    """Where this rank is at work; empty while it waits in a collective of a step."""
    stacks = {thread: _stack(frame) for thread, frame in sys._current_frames().items()}
    return place(stacks.pop(threading.main_thread().ident or 0), list(stacks.values()))


def place(main: Stack, others: Sequence[Stack]) -> str:
    """The same, from the stacks of the main thread and of others, one of which may do what that waits for."""
    stack, in_main = main, {name for _, _, name in main}
    if {"steps_ahead", "result"} <= in_main:
        stack = next((other for other in others if any(name == "_agree" for _, _, name in other)), main)
    elif "_engine_run_backward" in in_main:
        # A GPU's backward pass, and what DeepSpeed does in it, has a thread of torch's.
        stack = next((other for other in others if any("/deepspeed/" in file for file, _, _ in other)), main)
    names = {name for _, _, name in stack}
    is_waiting = names & _WAITS_FOR_DEVICE or any(part in file for file, _, _ in stack for part in _COLLECTIVES)
    if is_waiting and (names | in_main) & _IN_STEP:
        return ""
    file, line, name = next((frame for frame in stack if frame[0].startswith(f"{_SOURCE}toolkit/")), stack[0])
    return f"is at {file.removeprefix(_SOURCE)}:{line} in {name}"


def _stack(frame: FrameType) -> Stack:
    return [(at.f_code.co_filename, line, at.f_code.co_name) for at, line in walk_stack(frame)]
