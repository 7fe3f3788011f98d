"""Bytes that torch allocates on a CPU, from its own allocator's events."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class Allocated:
    """What a piece of work returned; bytes that it left allocated, and the most that it had at any time."""

    result: Any
    kept: int
    peak: int


def allocated_by(work: Callable[[], Any]) -> Allocated:
    """Run `work` and count what torch allocates and frees meanwhile, caches of any kind included."""
    # What waits for the collector now would be counted as freed by `work`.
    gc.collect()
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            result = work()
    finally:
        gc.enable()
    assert profiled.profiler is not None
    assert profiled.profiler.kineto_results is not None
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events, "the profiler saw no allocation"
    kept = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        kept += event.nbytes()
        peak = max(peak, kept)
    return Allocated(result, kept, peak)
