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


# What needs a GPU, a package that nothing here needs, or a setting that is refused.
NOT_HERE = {"FA2, heads copied", "FA2, heads shared", "FA3 through torch", "FA4 through torch", "FA4 package", "flex"}
NOT_HERE |= {"Liger", "flash_attention_2", "gradients summed in bf16", "queries at targets"}


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


def test_an_unknown_section_is_named(monkeypatch):
    given = argparse.Namespace(call=None, sections=["machine", "kernel"], presets=None)
    with pytest.raises(SystemExit, match="--sections: unknown kernel; available: machine, tests, kernels"):
        _module("gpu", monkeypatch)._planned(given)


def test_it_measures_the_preset_that_it_is_told(tmp_path):
    """The very function that runs on a GPU, on a CPU: the preset made toy-sized, a peak given, so that MFU is known."""
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    overrides = [f"model.{name}={value}" for name, value in (sizes | heads).items()]
    overrides += ["data.sequence_length=64", "train.compile=false", "log.peak_tflops=0.5", 'precision="fp32"']
    script = (
        f"import sys, json; sys.path.insert(0, {str(BENCHMARKS)!r}); import gpu_step, gpu_trace\n"
        f"from pathlib import Path\nprofiler = gpu_trace.StepProfiler(6, trace=None)\n"
        f"row = gpu_step.measure('210m', Path({str(tmp_path)!r}), micro_rows=2, steps=6, vocabulary=300, "
        f"overrides={overrides!r}, profiler=profiler)\nprint(json.dumps(row))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["first_loss"] == pytest.approx(5.70, abs=0.05)  # ln 300
    assert row["tokens_per_second"] > 0
    assert row["mfu"] == pytest.approx(row["model_flops_per_second"] / 0.5e12, rel=0.5)
    assert (row["sequence_length"], row["micro_batches"], row["memory_gb"]) == (64, 4, None)
    assert not (tmp_path / "run" / "checkpoints").exists()
    groups = _grouped(row["profile"])
    assert groups >= {"head products", "head pointwise", "attention", "feed-forward products", "q, k, v, o products"}
    assert groups >= {"SwiGLU", "norms and residuals", "embedding", "accumulation", "update"}


def _grouped(profile: dict[str, Any]) -> set[str]:
    return {name for name, milliseconds in profile["groups_ms"].items() if milliseconds > 0}


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


@pytest.mark.parametrize("layout_name", ["random-cut", "documents"])
def test_queries_at_targets_are_compared_with_the_definition(layout_name, monkeypatch):
    """With a kernel of the CPU in the place of a GPU's: right, its errors are those of bf16; with wrong bounds, not."""
    attention = _module("gpu_attention", monkeypatch)
    segments_BS = attention.segments_of(layout_name, rows=3, length=64)
    layout = attention.SegmentLayout.from_segments(segments_BS)
    everywhere = attention.Case((4, 2, 16), segments_BS, layout, AttentionKind.BIDIRECTIONAL, "eager", np.arange(192))
    case = everywhere.at_targets()
    assert everywhere.pairs == sum(length**2 for length in layout.lengths)
    assert 0 < case.pairs < everywhere.pairs

    def without_the_first_key(query, key, value, query_bounds, key_bounds, *rest):
        return plain_flash(query, key.roll(1, 0), value, query_bounds, key_bounds, *rest)

    names = [f"{name}_error" for name in ("output", "d_query", "d_key", "d_value")]
    for kernel, is_right in ((plain_flash, True), (without_the_first_key, False)):
        monkeypatch.setattr(attention, "flash_kernel", lambda kernel=kernel: kernel)
        row = attention._measure(case, attention.CONTENDERS["queries at targets"], repeats=1)
        assert [row[name] < 0.02 for name in names] == [is_right] * 4


@pytest.mark.long
def test_every_section_runs_at_toy_size(tmp_path):
    """What fails on a GPU for a mistake in the benchmark, and not for the GPU, fails here first."""
    done = _run("--toy", "--out", str(tmp_path), timeout=580)
    rows = _rows(tmp_path)
    assert [row for row in rows if "error" in row] == []
    assert done.returncode == 0, done.stderr
    measured, skipped = ([row for row in rows if ("skipped" in row) is wanted] for wanted in (False, True))
    found = {(row["section"], row["what"]) for row in measured}
    kernels = {("kernels", what) for what in ("product", "attention", "head", "pointwise", "optimizer")}
    others = {("tests", "tests"), ("step", "run"), ("ablations", "run"), ("peer", "peer")}
    assert found >= kernels | others | {("machine", what) for what in ("software", "gpu", "host", "copy", "product")}
    assert {row["kernel"] for row in measured if row["what"] == "attention"} >= {"the toolkit's choice"}
    missing = {row.get("kernel") or row.get("contender") or row.get("variant") or row["attention"] for row in skipped}
    assert missing <= NOT_HERE
    steps = [row for row in measured if row["section"] == "step"]
    variants = ("12 rows", "planned rows", "clm", "documents")
    found_steps = [(row["preset"], row["variant"]) for row in steps]
    assert found_steps == [(preset, variant) for preset in ("210m", "610m", "1b") for variant in variants]
    profiled = [_grouped(row["profile"]) for row in steps if "profile" in row]
    assert len(profiled) == 6
    assert all(groups >= {"head products", "attention", "update"} for groups in profiled)
    assert (tmp_path / "trace-210m-12-rows.json.gz").is_file()
    assert 20 < len(done.stdout.splitlines()) <= 60


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


@pytest.mark.long
def test_the_call_runs_at_toy_size(tmp_path):
    done = _run("--toy", "--call", "ONE", "--out", str(tmp_path), timeout=580)
    rows = _rows(tmp_path)
    assert [row for row in rows if "error" in row] == []
    assert done.returncode == 0, done.stderr
    jobs = list(dict.fromkeys(row["job"] for row in rows))
    assert (jobs[:4], jobs[-1]) == (["machine", "step:210m", "step:610m", "step:1b"], "tests")
    runs = {row["variant"]: row["first_loss"] for row in rows if row.get("what") == "run" and row["preset"] == "210m"}
    assert list(runs) == ["planned rows", "12 rows, flash2", "12 rows, flash2, plain forms", "1 rows", "zero2"]
    assert runs["12 rows, flash2, plain forms"] == pytest.approx(runs["12 rows, flash2"], rel=1e-3)


def test_the_call_has_steps_first_and_tests_last(monkeypatch):
    calls, scale = _module("gpu_calls", monkeypatch), _module("gpu_scale", monkeypatch)
    call = calls.CALLS["ONE"]

    def planned(**chosen: Any) -> list[str]:
        everything: dict[str, Any] = {"sections": calls.SECTIONS, "presets": scale.PRESETS}
        return [job.name for job in calls.plan(call, scale.FULL, **everything | chosen)]

    assert planned() == [
        "machine",
        "step:210m",
        "step:610m",
        "step:1b",
        "ablations:forms",
        "attention-random-cut",
        "head-210m",
        "ablations:rows",
        "tests",
    ]
    assert planned(sections=["step"], presets=["1b"]) == ["step:1b"]
    assert call.minutes == 9.5
    # A job that hangs leaves time for the two that follow it.
    assert max(job.limit_s for job in call.jobs(scale.FULL)) < 60 * call.minutes / 3


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
