"""Sections `machine` and `tests` of `benchmarks/gpu.py`: what is there, the two roofs at begin and end, is it right."""

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from gpu_scale import Job
from gpu_timing import Row, Rows, attempt, device, median_ms, random, tera_per_second
from rows import PACKAGES, machine, versions

ROOT = Path(__file__).resolve().parents[1]
_TESTS = ("tests/model", "tests/engine", "tests/training", "tests/golden")
# A line for each test, so that those that ended are known where the others were stopped.
_COUNTED = re.compile(r"^\S+::.* (PASSED|FAILED|SKIPPED|ERROR)\b", re.MULTILINE)
_SECONDS_TO_REPORT = 5
_QUERIED = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,power.draw,temperature.gpu,memory.total"


def measure_machine(job: Job) -> Rows:
    """Facts that the other rows have to be read against."""
    yield attempt({"what": "software"}, _software)
    yield attempt({"what": "gpu"}, _gpu)
    yield attempt({"what": "host"}, machine)
    yield attempt({"what": "allocator"}, _allocator)
    yield from measure_roofs(job)


def measure_roofs(job: Job) -> Rows:
    """A large copy and a large product; measured again at the end, they show whether the machine slowed down."""
    yield attempt({"what": "copy"}, lambda: _copy(job))
    yield attempt({"what": "product"}, lambda: _product(job))


def _software() -> Row:
    libraries: dict[str, Any] = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    libraries["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    found = versions(("torch", "triton", *PACKAGES[1:], "nvidia-cublas", "nvidia-cublas-cu12"))
    return {"versions": found, "libraries": libraries}


def _gpu() -> Row:
    command = ["nvidia-smi", f"--query-gpu={_QUERIED}", "--format=csv,noheader"]
    line = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()[0]
    return dict(zip(_QUERIED.split(","), map(str.strip, line.split(",")), strict=True))


def _allocator() -> Row:
    """Try the allocator that runs ask for, in a process of its own: some machines refuse its calls."""
    command = [sys.executable, "-c", f"import torch; torch.ones(1 << 20, device='{device()}').sum().item()"]
    environment = os.environ | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return {"expandable_segments": done.returncode == 0, "found": done.stderr[-400:]}


def _copy(job: Job) -> Row:
    source = torch.randint(0, 256, (job.scale.copy_bytes,), dtype=torch.uint8, device=device())
    target = torch.empty_like(source)
    milliseconds = median_ms(lambda: target.copy_(source), repeats=job.scale.repeats)
    return {"ms": milliseconds, "tb_per_second": tera_per_second(2 * job.scale.copy_bytes, milliseconds)}


def _product(job: Job) -> Row:
    size = job.scale.square
    left, right = random(size, size), random(size, size)
    milliseconds = median_ms(lambda: left @ right, repeats=job.scale.repeats)
    return {"ms": milliseconds, "tflops": tera_per_second(2 * size**3, milliseconds)}


def measure_tests(job: Job) -> Rows:
    """The tests marked `gpu`, or those of them that end in time; a toy runs some, which skip themselves."""
    where = ("tests/model/test_attention_gpu.py",) if job.scale.name == "toy" else _TESTS
    command = [sys.executable, "-m", "pytest", "-vv", "-m", "gpu", "-p", "no:cacheprovider", "--tb=short", *where]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    stop = threading.Timer(job.limit_s - _SECONDS_TO_REPORT, process.kill)
    stop.start()
    lines = []
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    stop.cancel()
    row: Row = {"what": "tests", "returncode": process.returncode, "counts": count_tests("".join(lines))}
    failed = "; ".join(line.strip() for line in lines if line.startswith(("FAILED", "ERROR")))
    found = failed or ("stopped at their limit" if process.returncode < 0 else "pytest says why in log.txt")
    yield row | ({"error": f"tests failed: {found[:400]}"} if process.returncode else {})


def count_tests(output: str) -> dict[str, int]:
    """Number of tests by how they ended, from pytest's lines about each."""
    return dict(Counter(found.lower() for found in _COUNTED.findall(output)))
