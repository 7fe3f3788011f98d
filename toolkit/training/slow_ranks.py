"""Ranks that hold up the others, by the time each takes by itself: its forward passes, and waiting for its own data.

The rest of a step ends on all ranks together. (In forward passes, too, ranks of one tensor-parallel copy wait for each
other, and at ZeRO stage 3 all do.)
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from toolkit.training.hooks import Hook
from toolkit.training.run_state import StepInfo, StepMetrics

_SLOW = 1.5
_STEPS = 20
# Share of a step: the system's scheduler occasionally costs a rank less than that.
_LEAST_SHARE = 0.05


class ForwardTime:
    """Seconds of a module's training forward passes, measured on the device: a GPU's host merely queues them."""

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        self._is_gpu, self._marks = device.type == "cuda", list[Any]()
        module.register_forward_pre_hook(self._mark)
        module.register_forward_hook(self._mark)

    def take(self) -> float:
        """Seconds of the passes since the last call, all of which the device must have finished."""
        marks, self._marks = self._marks, []
        passes = zip(marks[::2], marks[1::2], strict=False)
        return float(sum(begin.elapsed_time(end) / 1e3 if self._is_gpu else end - begin for begin, end in passes))

    def _mark(self, module: torch.nn.Module, *_: object) -> None:
        if module.training and self._is_gpu:
            self._marks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._marks[-1].record()
        elif module.training:
            self._marks.append(time.perf_counter())


def slow_ranks(seconds_W: Sequence[float], *, least_seconds: float, num_stages: int = 1) -> dict[int, float]:
    """Ranks far above the median of their pipeline stage (of two ranks, the faster one), and that median.

    A difference must be more than `least_seconds` in any case.
    """
    own = np.array(seconds_W).reshape(num_stages, -1)
    medians = np.sort(own, axis=1)[:, [(own.shape[1] - 1) // 2]] + 0 * own
    is_slow = (own > _SLOW * medians) & (own - medians > least_seconds)
    return {rank: float(medians.flat[rank]) for rank in np.flatnonzero(is_slow).tolist()}


class SlowRankHook(Hook):
    """Reports each slow rank once, by the medians of 20 steps. `hosts` are by rank."""

    def __init__(self, hosts: Sequence[str], *, num_stages: int, say: Callable[[str], None]) -> None:
        self._hosts, self._num_stages, self._say = hosts, num_stages, say
        self._steps, self._told = list[list[float]](), set[int]()

    def after_step(self, info: StepInfo, metrics: StepMetrics) -> None:
        """Add the step; compare the ranks after every 20."""
        self._steps.append([*metrics.own_seconds_W, metrics.seconds])
        if len(self._steps) < _STEPS:
            return
        *own_W, seconds = np.median(self._steps, axis=0).tolist()
        self._steps = []
        found = slow_ranks(own_W, least_seconds=_LEAST_SHARE * seconds, num_stages=self._num_stages)
        for rank, median in found.items():
            if rank not in self._told:
                self._told.add(rank)
                self._say(
                    f"rank {rank} on {self._hosts[rank]} is slow, and all others wait for it: its forward passes and "
                    f"its data take {1e3 * own_W[rank]:,.0f} ms a step, {1e3 * median:,.0f} ms on the median rank "
                    f"({_STEPS} steps). Look at what else runs there, at its storage and the clock of its device."
                )
