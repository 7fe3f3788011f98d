"""benchmarks/gpu.py, as far as a machine without a GPU can tell: it refuses, it runs at toy size, it counts right."""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.kernels import plain_flash
from toolkit.core.types import AttentionKind

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
BENCHMARK = BENCHMARKS / "gpu.py"
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}


def _run(*arguments: str, timeout: int = 200) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARK), *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout, check=False)


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def _module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module(name)


def test_without_a_gpu_it_says_so_and_leaves_with_2(tmp_path):
    done = _run("--out", str(tmp_path / "results"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "There is no GPU" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_the_machine_is_measured_at_begin_and_end(tmp_path):
    done = _run("--toy", "--sections", "machine", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = _rows(tmp_path)
    assert [row["what"] for row in rows] == ["software", "gpu", "host", "allocator", *["copy", "product"] * 2]
    assert {row["scale"] for row in rows} == {"toy"}
    assert "torch" in rows[0]["versions"]
    shown = done.stdout.splitlines()
    assert shown == (tmp_path / "table.txt").read_text().splitlines()
    assert shown[0] == "toy sizes on a CPU: the figures mean nothing"
    assert [line.split(":")[0] for line in shown[1:]] == [
        "machine",
        "versions",
        "attention that is installed",
        "copy",
        "product",
    ]


def test_a_job_is_stopped_at_its_limit_with_its_children(tmp_path, monkeypatch):
    gpu = _module("gpu", monkeypatch)
    given = argparse.Namespace(toy=True, call=None, sections=["machine"], presets=None, out=tmp_path)
    assert gpu._run_job(given, "machine", 0.2) == "stopped at its limit of 0 s"
    assert (tmp_path / "log.txt").read_text() == "=== machine\n"


def test_a_job_that_breaks_down_is_said(tmp_path, monkeypatch):
    gpu = _module("gpu", monkeypatch)
    given = argparse.Namespace(toy=True, call=None, sections=["machine"], presets=None, out=tmp_path)
    assert gpu._run_job(given, "no such job", 60) == "left with code 1; log.txt has its output"
    assert "StopIteration" in (tmp_path / "log.txt").read_text()


def test_an_error_is_a_row_and_what_is_missing_another(monkeypatch):
    timing = _module("gpu_timing", monkeypatch)

    def out_of_memory() -> dict[str, Any]:
        raise RuntimeError("out of memory")

    def not_installed() -> dict[str, Any]:
        raise ImportError("no such package")

    row = timing.attempt({"what": "head"}, out_of_memory)
    assert row.pop("traceback").endswith("RuntimeError: out of memory\n")
    assert row == {"what": "head", "error": "RuntimeError: out of memory"}
    assert timing.attempt({"what": "head"}, not_installed) == {
        "what": "head",
        "skipped": "ImportError: no such package",
    }

    def renamed() -> dict[str, Any]:
        raise ImportError("cannot import name 'x' from 'toolkit.run'", name="toolkit.run")

    assert timing.attempt({}, renamed)["error"] == "ImportError: cannot import name 'x' from 'toolkit.run'"


def test_a_failed_test_and_an_allocator_that_fails_end_nothing(tmp_path, monkeypatch):
    """What comes after the machine was looked at does without expandable memory."""
    gpu, environments = _module("gpu", monkeypatch), {}

    def run_job(given: argparse.Namespace, name: str, seconds: float) -> str:
        environments[name] = os.environ.get("PYTORCH_ALLOC_CONF")
        found = {"machine": {"what": "allocator", "expandable_segments": False}, "tests": {"error": "1 failed"}}
        gpu.append_row(gpu._results(given), {"section": name, "job": name} | found.get(name, {}))
        return ""

    monkeypatch.setattr(gpu, "_run_job", run_job)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "")
    given = {"toy": True, "call": None, "sections": ["machine", "tests", "ablations"], "presets": None, "minutes": None}
    assert gpu._run_all(argparse.Namespace(**given, out=tmp_path)) == 1
    off = "expandable_segments:False"
    assert environments == {"machine": "", "tests": off, "ablations": off, "machine-end": off}


def test_tests_are_counted_also_where_the_others_were_stopped(monkeypatch):
    machine = _module("gpu_machine", monkeypatch)
    lines = [
        "tests/model/test_a.py::test_one[causal-0] PASSED                [ 33%]",
        "tests/model/test_a.py::test_two SKIPPED (needs a CUDA device)   [ 66%]",
        "tests/model/test_b.py::test_three ",
    ]
    assert machine.count_tests("\n".join(lines)) == {"passed": 1, "skipped": 1}
    assert machine.count_tests("") == {}


def test_products_of_a_preset_are_those_of_its_layers(monkeypatch):
    """610m: 18 query heads on 6 key-value heads of 64, width 1152, inner 4096."""
    matmul, scale = _module("gpu_matmul", monkeypatch), _module("gpu_scale", monkeypatch).FULL
    found = {name: sizes for name, *sizes in matmul.products(scale.models["610m"], 24_576)}
    assert found["q,k,v"] == [24_576, 1152, 1152 + 2 * 384]
    assert found["gate,up"] == [24_576, 1152, 8192]
    assert found["down"] == [24_576, 4096, 1152]
    assert found["head"] == [9984, 1152, 128_256]
    assert scale.targets == 9984


def _event(category: str, name: str, start: float, duration: float, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": 1, "args": arguments}


def test_a_trace_is_split_by_what_launched_its_kernels(monkeypatch):
    """Eight kernels of a made-up step, with a wait of 100 us before the update, which reads from the device."""
    trace = _module("gpu_trace", monkeypatch)
    operators = [
        (0, "benchmark: head", "aten::mm", [[8, 4], [4, 300]], "nvjet_tst_128x256", 10),
        (10, "benchmark: head", "aten::_log_softmax", [[8, 300]], "softmax_kernel", 20),
        (20, "block", "aten::mm", [[8, 4], [4, 48]], "nvjet_tst_128x256", 30),
        (30, "block", "aten::mm", [[8, 4], [4, 4]], "nvjet_tst_128x256", 40),
        (40, "block", "triton", [[8, 48]], "triton_poi_fused_mul_silu_0", 50),
        (50, "block", "triton", [], "triton_for_fused_1", 5),
        (60, "block", "triton", [], "triton_poi_fused_cat_flip_mul_2", 7),
        (70, "benchmark: update", "aten::item", [], "Memcpy DtoH (Device -> Pinned)", 60),
    ]
    events, moment = [], 1000.0
    for number, (start, part, operator, dims, kernel, duration) in enumerate(operators):
        events += [
            _event("user_annotation", part, start, 9),
            _event("cpu_op", operator, start + 1, 7, **{"Input Dims": dims}),
            _event("cuda_runtime", "cudaLaunchKernel", start + 2, 3, correlation=number),
        ]
        moment += 100 if part == "benchmark: update" else 0
        category = "gpu_memcpy" if "Memcpy" in kernel else "kernel"
        events.append(_event(category, kernel, moment, duration, correlation=number) | {"tid": 7})
        moment += duration
    events.append(_event("cuda_runtime", "cudaDeviceSynchronize", 90, 5, correlation=99))
    found = trace.summarize(events, trace.Shape(inner=48))
    assert found["groups_ms"] == {
        "update": 0.06,
        "SwiGLU": 0.05,
        "q, k, v, o products": 0.04,
        "feed-forward products": 0.03,
        "head pointwise": 0.02,
        "head products": 0.01,
        "rotation": 0.007,
        "joined weights": 0.005,
    }
    assert (found["kernels"], found["busy_ms"], found["idle_ms"]) == (8, 0.222, 0.1)
    gap = {"us": 100.0, "before": "Memcpy DtoH (Device -> Pinned)", "in": ["benchmark: update", "aten::item"]}
    assert (found["num_long_gaps"], found["long_gaps"]) == (1, [gap])
    assert (found["device_synchronizations"], found["stream_synchronizations"], found["copies_to_host"]) == (1, 0, 1)
    assert (found["host_ms_before_first_kernel"], found["launch_ms"]) == (1.0, 0.024)


def test_kernels_at_the_same_time_are_busy_once(monkeypatch):
    trace = _module("gpu_trace", monkeypatch)
    events = [_event("kernel", "a", 0, 50), _event("kernel", "b", 10, 10), _event("kernel", "c", 60, 40)]
    found = trace.summarize(events, trace.Shape(inner=48))
    assert (found["busy_ms"], found["idle_ms"], found["num_long_gaps"]) == (0.09, 0.01, 0)


def test_the_table_has_predictions_beside_and_at_most_60_lines(monkeypatch):
    table = _module("gpu_table", monkeypatch).table
    run = {"section": "step", "what": "run", "preset": "210m", "variant": "12 rows", "rows": 12, "objective": "mlm"}
    run |= {"windows": "random-cut", "tokens_per_second": 1.0, "mfu": 0.25, "memory_gb": 1.0, "reserved_gb": 2.0}
    run |= {"first_loss": 11.8, "first_norm": 1.0, "first_step_s": 60.0, "step_s": 1.0}
    run["compile"] = True
    run["compilation"] = {"graphs": 2, "recompiles": ["forward: size mismatch"], "failures": []}
    profile = {"groups_ms": {"attention": 40.0, "update": 5.0}, "kernels": 9, "idle_ms": 8.0, "num_long_gaps": 1}
    profile |= {"device_synchronizations": 0, "copies_to_host": 3}
    shown = table([run | {"profile": profile}])
    found = "MFU 25.0 %, 1.0 of 2.0 GB, loss 11.8000, norm 1.000"
    assert shown[0] == f"step 210m 12 rows: 12 rows, 1 tokens/s [370k], {found}"
    # Of other rows, and of other runs with those rows, nothing is predicted.
    for changed, rate in (({"rows": 48}, "1 tokens/s [392k-446k], "), ({"rows": 3}, "1 tokens/s, ")):
        assert rate in table([run | changed])[0]
    assert "1 tokens/s, " in table([run | {"compile": False}])[0]
    assert "60 s first step, 2 graphs, 1 recompiles, 0 failures; profiled: 9 kernels, idle 8.0 ms" in shown[1]
    assert shown[2] == "  compiled again: forward: size mismatch"
    assert "  attention: 10.00" in shown
    assert "  idle: 2.00" in shown
    assert shown[-1] == "  update, once a step: 5.00"
    broken = [{"job": f"job {number}", "error": "RuntimeError: x\ny"} for number in range(40)]
    long = table([run] * 80 + broken * 2)
    assert len(long) == 60
    assert long[-2] == "failed: job 20 (2 times): RuntimeError: x y"
    assert long[-1] == "... 26 more that failed, in results.jsonl"
    assert all(len(line) <= 150 for line in long)


def test_rows_that_are_not_as_expected_hide_no_others(monkeypatch):
    table = _module("gpu_table", monkeypatch).table
    rows = [{"what": "tests", "counts": {"passed": 3}}, {"what": "optimizer", "preset": "210m"}]
    assert table(rows) == ["tests: 3 passed", "pointwise: not shown, KeyError: 'ms'; read results.jsonl"]
