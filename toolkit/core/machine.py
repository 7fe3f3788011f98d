"""The machine that a report was written on: hardware, load and versions of packages."""

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import toolkit
from toolkit.core.text import counted


def machine_facts(packages: Iterable[str]) -> dict[str, str]:
    """Hardware, load and versions, by name."""
    num_cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{processor_name()}, {counted(num_cores, 'core')}",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        # Above the number of cores, everything took longer than it should.
        "load average (15 min)": f"{os.getloadavg()[2]:.1f}",
        "toolkit": toolkit.__version__,
        "Python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def version_of(package: str) -> str:
    """Version of a package; "none" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def processor_name() -> str:
    """CPU model name, as far as the system reports it."""
    described = Path("/proc/cpuinfo")
    if described.is_file():
        for line in described.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
