"""Compute dtype of a run that does not set it: bf16 on a GPU, the faster of fp32 and bf16 on a CPU.

CPUs differ: with AVX512-BF16 a bf16 step takes half the time of an fp32 one, on an Intel processor without AMX up to
1.8 times as much. So a short training step is timed in both, once per processor, number of threads and version of
torch, and the times are kept in the user's cache folder: all runs of a study on one machine then agree. Times that
fluctuate, as on a busy machine, are not kept.
"""

import logging
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from toolkit.core.cache import CachedResult
from toolkit.core.environment import given_threads
from toolkit.core.locks import locked_file
from toolkit.core.types import AttentionKind
from toolkit.engine import gpus
from toolkit.model.config import ModelSettings
from toolkit.model.flops import attended_pairs, training_flops
from toolkit.model.presets import model_settings

Precision = Literal["fp32", "bf16"]
"""Compute dtype of a run."""
Seconds = dict[Precision, float]
"""Seconds of a step in each dtype."""

_NEEDED_SPEED_UP = 1.2
_TIMED_STEPS = 3
_LARGEST_SPREAD = 1.2
"""Largest ratio between speed-ups that still agree."""
_VERSION = 2
"""Version of the timed step; a new one needs a new measurement."""
_ROWS, _LENGTH = 4, 128
_BUSY = "CPU time, on a busy machine"
_log = logging.getLogger(__name__)


class Turn(NamedTuple):
    """Times of a step in each dtype, run back to back."""

    wall: Seconds
    cpu: Seconds
    """CPU time, averaged over threads; other processes hardly lengthen it."""


_for_now = dict[Path, Seconds]()
"""Measurements of this process on a busy machine, by the path where they would be kept."""


def choose_precision(zero_stage: int, *, ranks_per_machine: int) -> tuple[Precision, str]:
    """The compute dtype, and why, for this machine's ranks, which share its cores unless OMP_NUM_THREADS is set."""
    if zero_stage == 0:
        return "fp32", "ZeRO stage 0 accumulates gradients in the compute dtype"
    if gpus.has_gpu():
        return "bf16", "the run is on GPUs"
    return faster_on_this_cpu(threads_of_rank(ranks_per_machine))


def threads_of_rank(ranks_per_machine: int) -> int:
    """CPU threads of each rank."""
    return given_threads() or max(1, len(os.sched_getaffinity(0)) // ranks_per_machine)


def timed_speed(threads: int, precision: Precision) -> float | None:
    """Model FLOP/s of the timed step on this CPU; None if no measurement is kept."""
    seconds = CachedResult("precision", _description(threads, "pretraining")).read()
    pairs = attended_pairs(_model(), AttentionKind.BIDIRECTIONAL, [_LENGTH] * _ROWS)
    flops = training_flops(_model(), tokens=_ROWS * _LENGTH, targets=_ROWS * _LENGTH / 3, attended_pairs=pairs)
    return None if seconds is None else flops / seconds[precision]


def faster_on_this_cpu(
    threads: int,
    *,
    step: str = "pretraining",
    measure: Callable[[int], Sequence[Turn]] | None = None,
) -> tuple[Precision, str]:
    """bf16 if it is at least 1.2 times as fast as fp32, else fp32; and the reason in words.

    `measure` takes the number of threads and returns turns as `time_in_turns` does; by default `time_steps`.
    """
    cached = CachedResult("precision", _description(threads, step))
    seconds, source = _kept_or_measured(cached, partial(measure or time_steps, threads))
    speed_up = seconds["fp32"] / seconds["bf16"]
    precision: Precision = "bf16" if speed_up >= _NEEDED_SPEED_UP else "fp32"
    return precision, (
        f"on this CPU a step takes {seconds['bf16']:.3f} s in bf16 and {seconds['fp32']:.3f} s in fp32 ({source}); "
        f"bf16 is chosen where it is {_NEEDED_SPEED_UP} times as fast"
    )


def _kept_or_measured(cached: CachedResult, measure: Callable[[], Sequence[Turn]]) -> tuple[Seconds, str]:
    """Seconds of a step, and their origin; kept if all turns agree on the speed-up, in wall-clock or in CPU time."""
    if (seconds := _for_now.get(cached.path)) is not None:
        return seconds, _BUSY
    with ExitStack() as stack:
        kept = cached.read()
        if kept is None:
            # Of processes that start together, one measures, undisturbed, and the others read its result. An unwritable
            # cache costs a second at each start.
            with suppress(OSError):
                stack.enter_context(locked_file(cached.path.with_suffix(".lock")))
            kept = cached.read()
        if kept is not None:
            return kept, f"kept in {cached.path}"
        for times in zip(*measure(), strict=True):
            speed_ups = [found["fp32"] / found["bf16"] for found in times]
            seconds = {dtype: min(found[dtype] for found in times) for dtype in times[0]}
            if max(speed_ups) <= _LARGEST_SPREAD * min(speed_ups):
                cached.write(seconds)
                return seconds, "just measured"
    _log.warning("the CPU is busy, so whether fp32 or bf16 is faster is measured for this run only")
    assert seconds is not None, "there are two clocks"
    _for_now[cached.path] = seconds
    return seconds, _BUSY


def time_steps(threads: int) -> list[Turn]:
    """Turns of a small encoder's forward and backward pass in each dtype, on `threads` threads; about a second."""
    import torch

    from toolkit.model.encoder import Encoder
    from toolkit.model.initialization import initialize_

    ids_BS = torch.arange(_ROWS * _LENGTH).view(_ROWS, _LENGTH)
    positions_N = torch.arange(0, _ROWS * _LENGTH, 3)
    encoders: dict[Precision, Encoder] = {"fp32": Encoder(_model()), "bf16": Encoder(_model()).bfloat16()}
    for encoder in encoders.values():
        initialize_(encoder, seed=0)

    def step(precision: Precision) -> None:
        segments_BS = torch.ones_like(ids_BS)
        encoders[precision](
            ids_BS,
            segments_BS,
            AttentionKind.BIDIRECTIONAL,
            positions_N=positions_N,
            labels_N=positions_N,
            scale=1.0,
        ).backward()

    return time_in_turns(threads, step)


def _model() -> ModelSettings:
    return model_settings("nano", vocab_size=4096, hidden_size=256, num_hidden_layers=2, intermediate_size=1024)


def time_in_turns(threads: int, step: Callable[[Precision], None]) -> list[Turn]:
    """Three turns of a step in each dtype, on `threads` threads, after one that builds kernels; about a second."""
    turns, precisions = list[Turn](), get_args(Precision)
    with cpu_threads(threads):
        for _ in range(1 + _TIMED_STEPS):
            turn = Turn({}, {})
            for precision in precisions:
                wall, cpu = time.perf_counter(), time.process_time()
                step(precision)
                turn.wall[precision] = time.perf_counter() - wall
                turn.cpu[precision] = (time.process_time() - cpu) / threads
            turns.append(turn)
    return turns[1:]


@contextmanager
def cpu_threads(number: int | None) -> Iterator[None]:
    """Set the number of CPU threads inside the block; None leaves it unchanged."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _description(threads: int, step: str) -> dict[str, str | int]:
    return {"cpu": _cpu(), "threads": threads, "step": step, "torch": version("torch"), "version": _VERSION}


def _cpu(path: Path = Path("/proc/cpuinfo")) -> str:
    """Model of the first processor, with features that tell generations apart if a virtual machine hides the name."""
    wanted = ("vendor_id", "cpu family", "model", "model name")
    found = dict[str, str]()
    if path.is_file():
        first = path.read_text(encoding="utf-8").split("\n\n")[0]
        found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    features = sorted({"amx_bf16", "avx512_bf16", "avx512f"} & set(found.get("flags", "").split()))
    return ", ".join([found[name] for name in wanted if name in found] + features) or platform.processor() or "unknown"
