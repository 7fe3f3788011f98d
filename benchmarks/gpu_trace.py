"""One training step looked into, for `benchmarks/gpu.py`: which kernels ran how long for which part of the model.

A kernel belongs to the part whose operators were open on the host when it was launched: the profiler's trace links
each kernel to its launch.
"""

import gzip
import json
import re
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu_timing import Row

from toolkit.engine.engine import Engine
from toolkit.training.hooks import Hook
from toolkit.training.run_state import StepInfo, StepMetrics

HEAD, UPDATE, BACKWARD = "benchmark: head", "benchmark: update", "benchmark: backward"
_LARGEST_TRACE = 16 << 20
_LONG_GAP_US = 50
_NUM_GAPS = 12
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ON_HOST = ("cpu_op", "user_annotation")
_MATMUL_OPERATORS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::matmul", "aten::linear"}
_MATMUL_KERNELS = ("gemm", "nvjet", "cutlass", "xmma")
_ATTENTION = ("flash", "fmha", "attention", "attend", "varlen")
# In this order: a fused kernel's name lists its operators, and the first that fits is what it is for.
_POINTWISE = {
    "SwiGLU": ("silu",),
    "rotation": ("flip", "cos", "sin"),
    "joined weights": ("cat", "triton_for"),
    "norms and residuals": ("",),
}


@dataclass(frozen=True)
class Kernel:
    """Work on the device."""

    name: str
    start: float
    """Microseconds."""
    duration: float
    stack: tuple[str, ...]
    """Operators and ranges that were open at its launch, outermost first."""
    sizes: frozenset[int]
    """Of the innermost operator's inputs."""


class StepProfiler(Hook):
    """Profiles the step after `first_step` steps; the others run as without it."""

    def __init__(self, first_step: int, *, trace: Path) -> None:
        self._first_step, self._trace = first_step, trace
        self._stack = ExitStack()
        self._report: Row = {}

    def watching(self, engine: Engine) -> "StepProfiler":
        """Set the engine; returns this hook."""
        self._engine = engine
        return self

    def after_step(self, info: StepInfo, metrics: StepMetrics) -> None:
        """Start after the step before, stop after the step."""
        if info.step == self._first_step:
            self._start()
        elif info.step == self._first_step + 1:
            self._stop(metrics.seconds)

    def close(self, error: BaseException | None) -> None:
        """Take the ranges away."""
        self._stack.close()

    def report(self) -> Row:
        """Parts of the step."""
        return self._report

    def _start(self) -> None:
        module, engine = self._engine.module, self._engine.deepspeed
        self._annotate(module.lm_head, "forward", HEAD)
        self._annotate(engine, "backward", BACKWARD)
        self._annotate(engine, "step", UPDATE)
        self._inner = module.settings.intermediate_size
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        torch.cuda.synchronize()
        self._profile = torch.profiler.profile(activities=activities, record_shapes=True)
        self._profile.start()

    def _annotate(self, owner: Any, name: str, title: str) -> None:
        """Put a range around a method until `close`."""
        method = getattr(owner, name)

        def annotated(*arguments: Any, **named: Any) -> Any:
            with torch.profiler.record_function(title):
                return method(*arguments, **named)

        self._stack.enter_context(mock.patch.object(owner, name, annotated))

    def _stop(self, seconds: float) -> None:
        torch.cuda.synchronize()
        self._profile.stop()
        self._stack.close()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            content = path.read_bytes()
        self._report = summarize(json.loads(content)["traceEvents"], self._inner) | {"step_ms": 1e3 * seconds}
        packed = gzip.compress(content)
        self._report["trace"] = self._trace.name if len(packed) <= _LARGEST_TRACE else "too large, not kept"
        if len(packed) <= _LARGEST_TRACE:
            self._trace.write_bytes(packed)


def summarize(events: Sequence[dict[str, Any]], inner: int) -> Row:
    """A profiled step in numbers, from the events of a trace; `inner` is the feed-forward width.

    ms by group, kernels, ms in which the device ran and waited, the longest waits with what ended them, how often the
    host waited for the device or read from it, ms before the first kernel and in launches.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    kernels = sorted(_kernels(complete), key=lambda kernel: kernel.start)
    groups: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        groups[group_of(kernel, inner)] += kernel.duration / 1e3
    gaps = list(_gaps(kernels))
    launches = [event for event in complete if event.get("cat") in _LAUNCHES]
    first_on_host = min((event["ts"] for event in complete if event.get("cat") in _ON_HOST), default=0.0)
    span = max((k.start + k.duration for k in kernels), default=0.0) - min((k.start for k in kernels), default=0.0)
    idle = sum(gap for gap, _ in gaps)
    return {
        "groups_ms": {name: round(ms, 3) for name, ms in sorted(groups.items(), key=lambda item: -item[1])},
        "kernels": len(kernels),
        "busy_ms": round((span - idle) / 1e3, 3),
        "idle_ms": round(idle / 1e3, 3),
        "num_long_gaps": sum(gap > _LONG_GAP_US for gap, _ in gaps),
        "long_gaps": [
            {"us": round(gap, 1), "before": kernel.name[:80], "in": list(kernel.stack[-3:])}
            for gap, kernel in sorted(gaps, key=lambda pair: -pair[0])[:_NUM_GAPS]
            if gap > _LONG_GAP_US
        ],
        "device_synchronizations": _count(launches, "cudaDeviceSynchronize"),
        "stream_synchronizations": _count(launches, "cudaStreamSynchronize"),
        "copies_to_host": sum("DtoH" in kernel.name for kernel in kernels),
        "host_ms_before_first_kernel": round((kernels[0].start - first_on_host) / 1e3, 3) if kernels else None,
        "launch_ms": round(sum(event["dur"] for event in launches if "Launch" in event["name"]) / 1e3, 3),
        "longest_kernels": _longest(kernels, inner),
    }


def _longest(kernels: Iterable[Kernel], inner: int) -> list[Row]:
    """The 25 names that took longest together, which say whether the groups are right."""
    totals: dict[tuple[str, str], list[float]] = defaultdict(list)
    for kernel in kernels:
        totals[kernel.name[:100], group_of(kernel, inner)].append(kernel.duration / 1e3)
    longest = sorted(totals.items(), key=lambda item: -sum(item[1]))[:25]
    return [{"name": n, "group": g, "ms": round(sum(times), 3), "calls": len(times)} for (n, g), times in longest]


def _count(events: Iterable[dict[str, Any]], name: str) -> int:
    return sum(event["name"] == name for event in events)


def group_of(kernel: Kernel, inner: int) -> str:
    """The part of a step that a kernel belongs to."""
    name, opened = kernel.name.lower(), " ".join(kernel.stack).lower()
    is_matmul = any(part in name for part in _MATMUL_KERNELS) or _MATMUL_OPERATORS & set(kernel.stack)
    if UPDATE in opened:
        return "update"
    if HEAD in opened or "crossentropy" in opened.replace("_", ""):
        return "head products" if is_matmul else "head pointwise"
    if any(part in name or part in opened for part in _ATTENTION):
        return "attention"
    if "embedding" in name or "embedding" in opened or "lookup" in opened:
        return "embedding"
    if "accumulategrad" in opened or (BACKWARD in opened and "evaluate_function" not in opened):
        return "accumulation"
    if is_matmul:
        is_inner = {inner, 2 * inner} & kernel.sizes
        return "feed-forward products" if is_inner else "q, k, v, o products"
    if "mem" in name and ("htod" in name or "dtoh" in name):
        return "copies from and to the host"
    return next(group for group, parts in _POINTWISE.items() if any(part in name for part in parts))


def _kernels(events: Sequence[dict[str, Any]]) -> Iterator[Kernel]:
    """Work on the device, with the ranges that were open on the host."""
    on_device = [event for event in events if event.get("cat") in _ON_DEVICE]
    opened = _OpenRanges(event for event in events if event.get("cat") in _ON_HOST)
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    for event in on_device:
        launch = launches.get(event.get("args", {}).get("correlation"))
        stack = opened.at(launch["tid"], launch["ts"]) if launch else ()
        yield _kernel(event, stack)


def _kernel(event: dict[str, Any], stack: tuple[dict[str, Any], ...]) -> Kernel:
    dims = next((dims for entry in reversed(stack) if (dims := entry.get("args", {}).get("Input Dims"))), [])
    names = tuple(entry["name"] for entry in stack)
    sizes = frozenset(map(int, re.findall(r"\d+", str(dims))))
    return Kernel(event["name"], event["ts"], event["dur"], names, sizes)


class _OpenRanges:
    """Ranges of the host that are open at a moment, by thread."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self._by_thread: dict[Any, list[tuple[dict[str, Any], tuple[dict[str, Any], ...]]]] = defaultdict(list)
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            ranges = self._by_thread[event["tid"]]
            outer = ranges[-1] if ranges else None
            opened = (
                () if outer is None else tuple(e for e in (*outer[1], outer[0]) if e["ts"] + e["dur"] > event["ts"])
            )
            ranges.append((event, opened))
        self._starts = {tid: [event["ts"] for event, _ in ranges] for tid, ranges in self._by_thread.items()}

    def at(self, thread: Any, moment: float) -> tuple[dict[str, Any], ...]:
        """The ranges that are open, outermost first."""
        number = bisect_right(self._starts.get(thread, []), moment)
        if number == 0:
            return ()
        event, opened = self._by_thread[thread][number - 1]
        return tuple(entry for entry in (*opened, event) if entry["ts"] + entry["dur"] >= moment)


def _gaps(kernels: Sequence[Kernel]) -> Iterator[tuple[float, Kernel]]:
    """Microseconds in which nothing ran, and what came then; `kernels` are in the order of their starts."""
    end = kernels[0].start if kernels else 0.0
    for kernel in kernels:
        if kernel.start > end:
            yield kernel.start - end, kernel
        end = max(end, kernel.start + kernel.duration)
