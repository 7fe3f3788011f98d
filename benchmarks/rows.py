"""What benchmarks have in common: the rows of their results, the memory of a process, work in a process of its own."""

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "deepspeed", "accelerate", "numpy", "pydantic", "encoder-pretraining-toolkit")
Result = TypeVar("Result")


def machine() -> dict[str, Any]:
    """Processor, cores of this process and C library."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {"cpu": model, "cores": num_cores(), "libc": "-".join(platform.libc_ver())}


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of those packages that are installed, and of Python."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"python": platform.python_version()}


def parser_of(benchmark: str, description: str | None) -> argparse.ArgumentParser:
    """Parser of a benchmark's arguments, with the file that its rows go to."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS / f"{benchmark}.jsonl", help="file of JSON lines")
    parser.set_defaults(benchmark=benchmark)
    return parser


def keep(options: argparse.Namespace, **row: Any) -> None:
    """Show a row and add it to the benchmark's file, with the machine, its load now, and versions."""
    place = {"machine": machine(), "load_average": os.getloadavg()[0], "versions": versions()}
    row = {"benchmark": options.benchmark, **place, **row}
    print(json.dumps(row, indent=1), flush=True)
    append_row(options.output, row)


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a file of results, oldest first; none if there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.strip()]


def resident_megabytes(name: str = "VmRSS") -> float:
    """Memory of this process, or with `VmHWM` its highest, in MB of 10^6 bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


def apart(work: Callable[..., Result], *arguments: Any, **environment: str) -> Result:
    """What `work`, a function of a module, returns in a process of its own, which has these variables too."""
    with ProcessPoolExecutor(1, get_context("spawn"), _set, (environment,)) as pool:
        return pool.submit(work, *arguments).result()


def _set(environment: dict[str, str]) -> None:
    os.environ.update(environment)
