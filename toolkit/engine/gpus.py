"""GPUs of this machine, and peak FLOPs by model. A machine that cannot have any does not wait for torch's import."""

import ctypes
import os
import re
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

# Dense bf16 TFLOP/s of one device, from its data sheet, by its full name without "NVIDIA".
# Full, since names contain one another: a slice of a card (MIG, a virtual GPU), a variant with fewer units
# (A100-SXM-64GB) and an RTX A1000 are not an A100, and no MFU is better than a wrong one.
_BF16_TFLOPS = {
    r"A100-(SXM4?|PCIE)-(40|80)GB|A100 80GB PCIe|A100X": 312.0,
    r"A40": 149.7,
    r"L4": 121.0,
    r"L40S": 362.0,
    r"GeForce RTX 4090": 165.2,
    r"H100 80GB HBM3": 989.0,
    r"H100 PCIe": 756.0,
    r"H100 NVL": 835.0,
    r"H200": 989.0,
    r"H200 NVL": 835.0,
    r"GH200 (120GB|480GB|144G HBM3e)": 989.0,
    r"B200": 2250.0,
    # Half a card: torch shows each of its two dies as a device.
    r"AMD Instinct MI250X": 191.5,
    r"AMD Instinct MI300X": 1307.4,
}


def has_gpu() -> bool:
    """True if runs use GPUs; false with DS_ACCELERATOR=cpu, or on a machine without one."""
    if is_cpu_wanted() or not _may_have_gpu():
        return False
    import torch

    return torch.cuda.is_available()


def is_cpu_wanted() -> bool:
    """True if the user keeps runs off GPUs, on this machine and on others."""
    return os.environ.get("DS_ACCELERATOR") == "cpu"


def visible_gpus() -> list[str]:
    """Names of the GPUs that runs use, as CUDA_VISIBLE_DEVICES lists them (numbers or UUIDs); empty on CPU."""
    if not has_gpu():
        return []
    import torch

    listed = [name.strip() for name in os.environ.get(VISIBLE_DEVICES, "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    # CUDA reads the list up to the first unknown name.
    return listed[:count] or [str(number) for number in range(count)]


def num_devices() -> int:
    """Default number of ranks on a machine: one per visible GPU, else one."""
    return len(visible_gpus()) or 1


def gpu_bytes() -> int:
    """Memory of the smallest GPU of this machine, in bytes; there must be one."""
    import torch

    return min(torch.cuda.get_device_properties(number).total_memory for number in range(torch.cuda.device_count()))


def peak_flops(name: str) -> float | None:
    """Peak bf16 FLOP/s of a GPU by name; None if it is not in the table."""
    model = name.removeprefix("NVIDIA ")
    return next((tflops * 1e12 for names, tflops in _BF16_TFLOPS.items() if re.fullmatch(names, model)), None)


@cache
def _may_have_gpu() -> bool:
    """False for a torch build without GPU support, or a machine without NVIDIA's driver library or AMD's driver."""
    if "torch" in sys.modules:
        # Already imported: torch itself can tell.
        return True
    build = version("torch").partition("+")[2]
    # AMD's own containers have ROCm builds of torch whose version does not say so.
    if build.startswith(("cpu", "rocm")) or os.path.exists("/dev/kfd"):
        return build != "cpu"
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        return True
    return False
