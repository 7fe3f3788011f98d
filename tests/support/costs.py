"""What a test costs: CPU seconds, those of its processes and of its ranks too, and a limit on them.

A suite becomes slow one test at a time. One that needs more says how much (`@pytest.mark.costs(SECONDS)`), or is
`slow` or `long`. What the tests of a file share is set up with the first of them, and has a limit of its own.
"""

import os
import resource
import sys
import time
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest

CALL_SECONDS = 5.0
SETUP_SECONDS = 20.0
_REFERENCE_SECONDS = 0.008
"""What the loop of `_slowness` takes where the limits were set."""


def measured(item: pytest.Item, phase: str, seconds: float) -> Generator[None]:
    """Around a phase of a test: fail it if it took more CPU time than it may."""
    before = _cpu_seconds()
    yield
    used = _cpu_seconds() - before
    item.user_properties.append((phase, round(used, 2)))
    if marker := item.get_closest_marker("costs"):
        seconds = float(marker.args[0])
    is_free = any(item.get_closest_marker(name) for name in ("slow", "long", "gpu"))
    if not is_free and used > (limit := seconds * _slowness()):
        pytest.fail(
            f"The {phase} took {used:.1f} s of CPU time, and {limit:.1f} s is the limit on this machine "
            f"({seconds:g} s on a fast one). Make it cheaper, or mark it: `costs` with its seconds, `slow` or `long`.",
            pytrace=False,
        )


class Table:
    """A file with a line for each phase of each test that took a tenth of a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[tuple[float, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what the test's process found out."""
        used = float(dict(report.user_properties).get(report.when, 0.0))  # type: ignore[arg-type]
        if max(used, report.duration) >= 0.1:
            line = f"{used:8.2f} s CPU {report.duration:8.2f} s  {report.when:8} {report.nodeid}"
            self._lines.append((used, line))

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [line for _, line in sorted(self._lines, reverse=True)]
        self._path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _cpu_seconds() -> float:
    """Of this process, of its children that have ended, and of its ranks, which are children of a server."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    # Not imported for the sake of a test that needs none.
    server = sys.modules.get("toolkit.testing.distributed")
    return sum(one.ru_utime + one.ru_stime for one in used) + (server.cpu_seconds if server else 0.0)


@cache
def _slowness() -> float:
    """How many times slower this machine is than the one whose seconds the limits are; TEST_CPU_SECONDS says so too.

    That variable is the limit of a test, for a machine that is busy beyond measure: `inf` is none.
    """
    if given := os.environ.get("TEST_CPU_SECONDS"):
        return float(given) / CALL_SECONDS
    found = []
    for _ in range(5):
        started = time.process_time()
        sum(number * number for number in range(300_000))
        found.append(time.process_time() - started)
    # Without instructions for it, bf16 takes several times as long. On cores that others share everything takes up to
    # twice as long, and a limit that is missed by chance costs more than one that is too wide.
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    has_bf16 = "avx512_bf16" in flags or "amx_bf16" in flags
    return max(1.0, min(found) / _REFERENCE_SECONDS) * (3.0 if has_bf16 else 6.0)
