"""Resident memory of this process, and the release of freed memory to the system."""

import ctypes
import os
import sys


def release_freed_memory() -> None:
    """Return freed memory to the system (glibc's malloc_trim); does nothing elsewhere.

    The tokenizer's threads free the hundreds of megabytes that a text of some megabytes takes, but each thread's heap
    keeps them, and the next long text may fall to another thread: without this the heaps add up.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def resident_bytes() -> int:
    """Resident set size in bytes; 0 if the system has no /proc/self/statm."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
