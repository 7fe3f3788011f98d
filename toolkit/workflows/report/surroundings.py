"""The machine and the versions, as far as a program may see them."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

import toolkit

_PACKAGES = ("torch", "deepspeed", "transformers", "tokenizers", "numpy")


def surroundings() -> dict[str, str]:
    """What the job runs on and with, by name."""
    memory = psutil.virtual_memory().total / 2**30
    return {
        "processor": f"{_processor()}, {_cores()}",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "load": _load(),
        "toolkit": toolkit.__version__,
        "Python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def _cores() -> str:
    """Those that this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return "1 core" if count == 1 else f"{count} cores"


def _load() -> str:
    """How busy the machine was: with more waiting programs than cores, everything above took longer than it needs."""
    waiting = os.getloadavg()[2]
    return f"{waiting:.1f} programs ran or waited, on average over the last 15 minutes"


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    if described.is_file():
        for line in described.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
