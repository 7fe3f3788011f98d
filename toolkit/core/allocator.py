"""Host memory: how much is available, and whether glibc keeps freed blocks (CPU training) or not (preprocessing)."""

import ctypes
import platform
from contextlib import suppress
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")
"""The control group of a container (version 2)."""
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_THRESHOLD = -3
_MMAP_MAX = -4
_ARENA_MAX = -8


def keep_freed_memory() -> bool:
    """Ask glibc's allocator to keep freed memory. Call it before the first large allocation, on CPU runs only.

    glibc hands every large block back to the kernel when it is freed, and faults it in again, page by page, in the next
    step: tens of thousands of page faults per step. If it keeps the blocks, an eager training step is 16-27 % faster.

    False if the C library is not glibc.
    """
    return _set((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 256 << 20))


def give_back_freed_memory() -> bool:
    """Ask glibc's allocator to use few arenas and return blocks of 1 MiB or more. Call it before starting threads.

    With one arena per thread that keeps its freed blocks, memory freed by reading and encoding threads adds up: a peak
    of 582 MB instead of 414 MB for 130 MB of text with Llama 3's vocabulary.

    False if the C library is not glibc.
    """
    return _set((_ARENA_MAX, 2), (_MMAP_THRESHOLD, 1 << 20))


def available_memory() -> int:
    """Bytes this process may still allocate, limited by the machine and by its control group (v2, as in containers)."""
    import psutil

    available = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no control group, or its limit is "max"
        most, current = (int((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        available = min(available, most - current + int(cached.get("inactive_file", 0)))
    return available


def total_memory() -> int:
    """Total bytes that the processes of the machine, or of its control group, may allocate."""
    import psutil

    total = int(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):  # as above
        total = min(total, int((_GROUP / "memory.max").read_text()))
    return total


def _set(*settings: tuple[int, int]) -> bool:
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(name, value) == 1 for name, value in settings)
