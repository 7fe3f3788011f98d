"""Give freed memory back to the system after a very long text."""

import ctypes
import sys

__all__ = ["release_freed_memory"]


def release_freed_memory() -> None:
    """Ask glibc for it; other systems do nothing.

    The tokenizer's threads free the hundreds of megabytes that a text of some megabytes takes, but each thread's heap
    keeps them, and the next long text may fall to another thread: without this the heaps add up.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
