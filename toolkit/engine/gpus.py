"""GPUs of this machine. On one that cannot have any, nobody waits for torch to say so."""

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version


def has_gpu() -> bool:
    """Whether runs go to GPUs; DS_ACCELERATOR=cpu keeps them off, and so does a machine without one."""
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not _may_have_gpu():
        return False
    import torch

    return torch.cuda.is_available()


def num_devices() -> int:
    """Ranks that a machine has by default: one per visible GPU, else one."""
    if not has_gpu():
        return 1
    import torch

    return torch.cuda.device_count()


def gpu_bytes() -> int:
    """Memory of a GPU of this machine, of the smallest one; there has to be one."""
    import torch

    return min(torch.cuda.get_device_properties(number).total_memory for number in range(torch.cuda.device_count()))


@cache
def _may_have_gpu() -> bool:
    """False for a torch without GPUs and for a machine without NVIDIA's driver, by the library that torch loads."""
    if "torch" in sys.modules:
        # It is at hand, and it knows.
        return True
    build = version("torch").partition("+")[2]
    if build.startswith(("cpu", "rocm")):
        return build != "cpu"
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        return True
    return False
