"""What every benchmark's row says of where it was measured, and how a row is kept."""

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


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
