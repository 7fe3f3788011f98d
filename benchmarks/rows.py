"""Rows of results: what each says of where it was measured, and how it is kept."""

import json
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, cores of this process and C library."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "libc": "-".join(platform.libc_ver())}


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of installed packages, and of Python."""
    return {name: version(name) for name in packages} | {"python": platform.python_version()}


def measured_on(packages: Iterable[str]) -> dict[str, Any]:
    """Machine, its load now, and versions, as the last entries of a row."""
    return {"machine": machine(), "load_average": os.getloadavg()[0], "versions": versions(packages)}


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
