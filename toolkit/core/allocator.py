"""Memory: what is available, and whether the C library keeps what is freed: training on CPU does, preparing not."""

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
    step: tens of thousands of page faults a step. Told not to, an eager training step is 16-27 % faster.

    False where the C library is not glibc.
    """
    return _set((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 256 << 20))


def give_back_freed_memory() -> bool:
    """Ask glibc's allocator for few heaps, and to give blocks of a megabyte back. Call it before threads are started.

    With a heap for each thread, and blocks kept in them, what threads that read and encode have freed adds up: 582 MB
    against 414 MB at most for 130 MB of text with Llama 3's vocabulary.

    False where the C library is not glibc.
    """
    return _set((_ARENA_MAX, 2), (_MMAP_THRESHOLD, 1 << 20))


def available_memory() -> int:
    """Bytes that this process may still take, by the machine and by its control group (version 2, as containers)."""
    import psutil

    available = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # there is none, or it says "max"
        most, current = (int((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        available = min(available, most - current + int(cached.get("inactive_file", 0)))
    return available


def total_memory() -> int:
    """Bytes that the processes of the machine, or of its control group, may take in all."""
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
