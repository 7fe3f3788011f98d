"""Times of device work, and rows that survive an error: for the sections of `benchmarks/gpu.py`."""

import gc
import statistics
import traceback
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

from toolkit.core.errors import SettingsError
from toolkit.engine.gpus import is_cpu_wanted

Row = dict[str, Any]
Rows = Iterator[Row]
"""What a section gives: a row as soon as it is measured."""
_WARM_UP = 3


def device() -> torch.device:
    """Device that runs go to as well: the GPU; the CPU at toy size."""
    return torch.device("cpu" if is_cpu_wanted() else "cuda")


def median_ms(work: Callable[[], object], *, repeats: int) -> float:
    """Median milliseconds of `work` on the device, by its events."""
    for _ in range(_WARM_UP):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in pairwise(marks))


def peak_gb() -> float:
    """Largest memory since `free_memory`, in 10^9 bytes."""
    return round(torch.cuda.max_memory_allocated() / 1e9, 3)


def free_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def attempt(row: Row, work: Callable[[], Row]) -> Row:
    """`row` with what `work` measured, or with what it lacks or the error that it ended in: others are still made."""
    try:
        return row | work()
    except (ImportError, NotImplementedError, SettingsError) as lack:
        if isinstance(lack, ImportError) and (lack.name or "").startswith(("toolkit", "gpu_")):
            return row | error_row(lack)
        return row | {"skipped": f"{type(lack).__name__}: {str(lack).strip()[:200]}"}
    except Exception as error:
        return row | error_row(error)
    finally:
        free_memory()


def error_row(error: BaseException) -> Row:
    """An error as part of a row."""
    lines = traceback.format_exception(error)
    return {"error": f"{type(error).__name__}: {str(error).strip()[:400]}", "traceback": "".join(lines)[-3000:]}


def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
    """Normal numbers in bf16 on the device: zeros would draw less power, and run faster than a model does."""
    return torch.randn(shape, device=device(), dtype=torch.bfloat16) * scale


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """||found - expected|| / ||expected||, in fp64; NaN if either has one."""
    return float(f"{float((found.double() - expected).norm() / expected.norm()):.3g}")


def tera_per_second(amount: float, milliseconds: float) -> float:
    """FLOPs or bytes over a time, in 10^12 a second."""
    return float(f"{amount / milliseconds / 1e9:.4g}")
