"""The memory of this process: how much it holds, and giving back what is freed."""

import ctypes
import os
import sys


def release_freed_memory() -> None:
    """Ask glibc for it; other systems do nothing.

    The tokenizer's threads free the hundreds of megabytes that a text of some megabytes takes, but each thread's heap
    keeps them, and the next long text may fall to another thread: without this the heaps add up.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def resident_bytes() -> int:
    """Bytes of this process that are in memory; 0 where the system does not say it in a file."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
