"""Run one command: wall and CPU seconds of everything it starts, or the memory that all of it holds at its peak.

Linux only: processes that a command leaves behind become our children (a subreaper), which is what makes their CPU
seconds countable, and memory is read from /proc.
"""

import ctypes
import os
import resource
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
SAMPLE_SECONDS = 0.2


@dataclass(frozen=True)
class Usage:
    """Figures of a command; `peak_bytes` is proportional set size over its process tree, 0 where not sampled."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent has ended.

    Without it the work of a fork server's children is not counted: their parent is a daemon.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def run(command: list[str], *, log: Path, environment: dict[str, str], samples_memory: bool = False) -> Usage:
    """Run a command to its end and to the end of everything it started; its output goes to `log`.

    Sampling memory costs time: such a run is not for timing. Raises SystemExit with the end of the log where the
    command fails.
    """
    sampler = _MemorySampler() if samples_memory else None
    with log.open("wb") as output:
        before = _children_seconds()
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | environment)
        if sampler is not None:
            sampler.start()
        process.wait()
        wall = time.perf_counter() - start
        # Those that it left behind.
        with suppress(ChildProcessError):
            while True:
                os.wait()
    cpu = _children_seconds() - before
    peak_bytes = sampler.stop() if sampler is not None else 0
    if process.returncode != 0:
        last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise SystemExit(f"{' '.join(command)}\nended with {process.returncode}; the end of its output:\n{last_lines}")
    return Usage(wall, cpu, peak_bytes)


def _children_seconds() -> float:
    """CPU seconds of all children that were waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _MemorySampler(threading.Thread):
    """Reads the proportional set size of all descendants, five times a second, and keeps the largest sum."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._is_over = threading.Event()
        self._peak_bytes = 0

    def run(self) -> None:
        while not self._is_over.wait(SAMPLE_SECONDS):
            held = 0
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    held += process.memory_full_info().pss
            self._peak_bytes = max(self._peak_bytes, held)

    def stop(self) -> int:
        self._is_over.set()
        self.join()
        return self._peak_bytes
