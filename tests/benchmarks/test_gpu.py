"""benchmarks/gpu.py, as far as a machine without a GPU can tell: it refuses, it keeps its minutes, it counts right."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
BENCHMARK = BENCHMARKS / "gpu.py"
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}


def _run(*arguments: str, timeout: int = 200) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARK), *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout, check=False)


def test_without_a_gpu_it_says_so_and_leaves_with_2(tmp_path):
    done = _run("--out", str(tmp_path / "results"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "There is no GPU" in done.stderr
    assert not (tmp_path / "results").exists()


def _job(name: str = "machine", *, least_s: float = 1.0, limit_s: float = 60.0) -> Any:
    return SimpleNamespace(name=name, items=(), least_s=least_s, limit_s=limit_s)


def _given(folder: Path, **changes: Any) -> argparse.Namespace:
    usual = {"toy": True, "call": None, "jobs": ["*"], "minutes": None, "started": time.time(), "out": folder}
    return argparse.Namespace(**usual | changes)


def test_a_job_is_stopped_at_its_limit_with_its_children(tmp_path, module):
    gpu = module("gpu")
    assert gpu._start_job(_given(tmp_path), _job(), 0.2) == "stopped at its limit of 0 s"
    assert (tmp_path / "log.txt").read_text() == "=== machine\n"


def test_a_job_that_breaks_down_is_said(tmp_path, module, monkeypatch):
    gpu = module("gpu")
    (tmp_path / "gpu.py").write_text("raise TypeError('a mistake')\n")
    monkeypatch.setattr(gpu, "__file__", str(tmp_path / "gpu.py"))
    assert gpu._start_job(_given(tmp_path), _job(), 60) == "left with code 1; log.txt has its output"
    assert "TypeError: a mistake" in (tmp_path / "log.txt").read_text()


class Calls:
    """`gpu.py` with jobs that only note what they were given."""

    def __init__(self, gpu: Any, monkeypatch: pytest.MonkeyPatch, jobs: list[Any], **rows: dict[str, Any]) -> None:
        self.gpu, self._rows, self._jobs = gpu, rows, jobs
        self.seconds: dict[str, float] = {}
        self.allocator: dict[str, str | None] = {}
        monkeypatch.setattr(self.gpu, "_start_job", self._start_job)
        monkeypatch.setattr(self.gpu, "_planned", lambda given: self._jobs)
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", "")

    def _start_job(self, given: argparse.Namespace, job: Any, seconds: float) -> str:
        self.seconds[job.name] = seconds
        self.allocator[job.name] = os.environ.get("PYTORCH_ALLOC_CONF")
        self.gpu._append(given, job.name, self._rows.get(job.name, {}))
        return "stopped at its limit" if job.name == "hangs" else ""


def test_a_failed_test_and_an_allocator_that_fails_end_nothing(tmp_path, module, monkeypatch):
    """What comes after the machine was looked at does without expandable memory."""
    jobs = [_job(name) for name in ("machine", "tests", "ablations")]
    allocator = {"what": "allocator", "expandable_segments": False}
    calls = Calls(module("gpu"), monkeypatch, jobs, machine=allocator, tests={"error": "1 failed"})
    assert calls.gpu._run_all(_given(tmp_path)) == 1
    off = "expandable_segments:False"
    assert calls.allocator == {"machine": "", "tests": off, "ablations": off}


def test_the_clock_counts_from_the_time_that_was_handed_in(tmp_path, module, monkeypatch, capsys):
    """8.7 minutes, 7 of which are over: a job gets what is left at most, and one that needs more is not begun."""
    jobs = [_job("short"), _job("hangs", limit_s=600), _job("long", least_s=120)]
    calls = Calls(module("gpu"), monkeypatch, jobs)
    given = _given(tmp_path, toy=False, call="contact", started=time.time() - 7 * 60)
    assert calls.gpu._run_all(given) == 1
    assert calls.seconds["short"] == 60
    assert calls.seconds["hangs"] == pytest.approx(102, abs=5)
    assert set(calls.seconds) == {"short", "hangs"}
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-2:] == ["failed: hangs: stopped at its limit", "not reached: long"]
    assert "long: 10" in shown.err
    assert "s were left, 120 are its least" in shown.err


def test_the_rest_begins_with_what_failed_or_was_not_reached(module):
    calls, scale = module("gpu_calls"), module("gpu_scale")
    everything = [job.name for job in calls.jobs_of(None, scale.FULL, [])]
    assert len(set(everything)) == len(everything)
    rows: list[dict[str, Any]] = []
    for job in (*calls.contact(scale.FULL), *calls.numbers(scale.FULL)):
        rows += [{"call": 1, "job": job.name, "variant": item.name} for item in job.items or [_job("")]]
    changes = {
        "launches": [{"variant": "mixture", "error": "x"}],
        "tests": [{"not_reached": "x"}],
        "step:1b": [{"variant": "mlm", "error": "out of memory"}, {"variant": "clm"}, {"error": "stopped"}],
        "kernels-attention": [{}, {"error": "x"}],
    }
    rows = [row for row in rows if row["job"] not in changes]
    rows += [{"call": 2, "job": name} | row for name, changed in changes.items() for row in changed]
    others = [item.name for item in calls.CASES if item.name != "mixture"]
    rows += [{"call": 2, "job": "launches", "variant": name} for name in others]
    # Of jobs without items, the last call counts.
    rows += [{"call": 1, "job": "peer:210m", "error": "x"}, {"call": 3, "job": "peer:210m"}]
    found = {job.name: [item.name for item in job.items] for job in calls.jobs_of("rest", scale.FULL, rows)}
    own = [job.name for job in calls.rest(scale.FULL)]
    again = {"launches": ["mixture"], "tests": [], "step:1b": ["mlm", "documents"], "kernels-attention": []}
    assert list(found) == [own[0], *again, *own[1:]]
    assert {name: found[name] for name in again} == again
    assert [job.name for job in calls.jobs_of("rest", scale.FULL, [])][1:3] == ["machine", "launches"]


@pytest.mark.parametrize("call", ["contact", "numbers", "rest"])
def test_a_job_that_hangs_leaves_time_for_others(call, module):
    calls, scale = module("gpu_calls"), module("gpu_scale")
    jobs = list(calls.CALLS[call](scale.FULL))
    assert max(job.limit_s for job in jobs) < 60 * 8.7 / 2
    assert all(0 < job.least_s <= job.limit_s / 2 or job.limit_s == 80 for job in jobs)


def test_an_error_is_a_row_and_what_is_missing_another(module, monkeypatch):
    timing = module("gpu_timing")
    monkeypatch.setattr(timing, "free_memory", lambda: None)

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


def test_tests_are_counted_also_where_the_others_were_stopped(module):
    machine = module("gpu_machine")
    lines = [
        "tests/model/test_a.py::test_one[causal-0] PASSED                [ 33%]",
        "tests/model/test_a.py::test_two SKIPPED (needs a CUDA device)   [ 66%]",
        "tests/model/test_b.py::test_three ",
    ]
    assert machine.count_tests("\n".join(lines)) == {"passed": 1, "skipped": 1}
    assert machine.count_tests("") == {}


def _event(category: str, name: str, start: float, duration: float, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": 1, "args": arguments}


def test_a_trace_is_split_by_what_launched_its_kernels(module):
    """Eight kernels of a made-up step, with a wait of 100 us before the update, which reads from the device."""
    trace = module("gpu_trace")
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
    found = trace.summarize(events, 48)
    assert found["groups_ms"] == {
        "update": 0.06, "SwiGLU": 0.05, "q, k, v, o products": 0.04, "feed-forward products": 0.03,
        "head pointwise": 0.02, "head products": 0.01, "rotation": 0.007, "joined weights": 0.005,
    }  # fmt: skip
    assert (found["kernels"], found["busy_ms"], found["idle_ms"]) == (8, 0.222, 0.1)
    gap = {"us": 100.0, "before": "Memcpy DtoH (Device -> Pinned)", "in": ["benchmark: update", "aten::item"]}
    assert (found["num_long_gaps"], found["long_gaps"]) == (1, [gap])
    assert (found["device_synchronizations"], found["stream_synchronizations"], found["copies_to_host"]) == (1, 0, 1)
    assert (found["host_ms_before_first_kernel"], found["launch_ms"]) == (1.0, 0.024)


def test_kernels_at_the_same_time_are_busy_once(module):
    trace = module("gpu_trace")
    events = [_event("kernel", "a", 0, 50), _event("kernel", "b", 10, 10), _event("kernel", "c", 60, 40)]
    found = trace.summarize(events, 48)
    assert (found["busy_ms"], found["idle_ms"], found["num_long_gaps"]) == (0.09, 0.01, 0)


def _run_row(**changes: Any) -> dict[str, Any]:
    run = {"job": "step:210m", "what": "run", "preset": "210m", "variant": "mlm", "rows": 48, "objective": "mlm"}
    run |= {"windows": "random-cut", "tokens_per_second": 1.0, "mfu": 0.25, "memory_gb": 1.0, "reserved_gb": 2.0}
    run |= {"losses": [11.8, 11.5], "first_norm": 1.0, "first_step_s": 60.0, "step_s": 1.0, "compile": True}
    run |= {"attention": "flash2", "fills_memory": True}
    run["compilation"] = {"graphs": 2, "recompiles": ["forward: size mismatch"], "failures": []}
    return run | changes


def _machine_rows(name: str, torch_version: str) -> list[dict[str, Any]]:
    software = {"what": "software", "versions": {"torch": torch_version}, "libraries": {"nccl": "2.28"}}
    return [{"what": "gpu", "name": name}, software]


@pytest.mark.parametrize(
    ("card", "attention", "rates"),
    [
        ("NVIDIA H100 80GB HBM3", "flash2", ("378,000", "117,000", "65,000")),
        ("NVIDIA H100 80GB HBM3", "flash3", ("415,000", "129,000", "71,000")),
        ("NVIDIA H200", "flash2", ("402,000", "126,000", "70,000")),
        ("NVIDIA H200", "flash3", ("450,000", "141,000", "78,000")),
        ("NVIDIA H100 PCIe", "flash2", None),
        ("NVIDIA H200", "sdpa", None),
    ],
)
def test_predictions_are_those_of_the_card(card, attention, rates, module):
    predictions = module("gpu_predictions")
    presets = ("210m", "610m", "1b")
    found = [predictions.tokens_per_second(card, "2.13.0", attention=attention, preset=preset) for preset in presets]
    assert found == [None] * 3 if rates is None else [f"{rate:,.0f}" for rate in found] == list(rates)
    old = [
        predictions.tokens_per_second(card, "2.11.0+cu130", attention=attention, preset=preset) for preset in presets
    ]
    if rates:
        lost = [1 - before / after for before, after in zip(old, found, strict=True)]
        assert lost == pytest.approx([0.016, 0.014, 0.011])


def test_the_table_has_predictions_beside_and_at_most_60_lines(module):
    table = module("gpu_table").table
    profile = {"groups_ms": {"attention": 40.0, "update": 5.0}, "kernels": 9, "idle_ms": 8.0, "num_long_gaps": 1}
    profile |= {"device_synchronizations": 0, "copies_to_host": 3}
    machine = _machine_rows("NVIDIA H100 80GB HBM3", "2.11.0+cu130")
    shown = table([*machine, _run_row(profile=profile)])
    assert shown[:2] == ["machine: name NVIDIA H100 80GB HBM3", "versions: torch 2.11.0+cu130, nccl 2.28"]
    found = "MFU 25.0 %, 1.0 of 2.0 GB, loss 11.8000 to 11.5000, norm 1.000"
    assert shown[2] == f"210m mlm: 48 rows, flash2, 1 tokens/s [model 371,952], {found}"
    # Of other rows, and of other runs with those rows, nothing is predicted.
    for changed in ({"fills_memory": False}, {"objective": "clm"}, {"compile": False}, {"windows": "documents"}):
        assert "1 tokens/s, " in table([*machine, _run_row(**changed)])[2]
    assert "60 s first step, 2 graphs, 1 recompiles, 0 failures; profiled: 9 kernels, idle 8.0 ms" in shown[3]
    assert shown[4] == "  compiled again: forward: size mismatch"
    assert "  attention: 10.00" in shown
    assert "  idle: 2.00" in shown
    assert shown[-1] == "  update, once a step: 5.00"
    broken = [{"job": f"job {number:02}", "error": "RuntimeError: x\ny"} for number in range(40)]
    lacking = [{"job": f"job {number}", "not_reached": "0 s were left"} for number in range(99)]
    skipped = [{"job": "kernels", "kernel": f"kernel {number}", "skipped": "ImportError"} for number in range(99)]
    long = table([_run_row(variant="v" * 200)] * 80 + broken * 2 + lacking + skipped)
    assert len(long) == 60
    assert long[-4] == "failed: job 13 (2 times): RuntimeError: x y"
    assert long[-3] == "... 26 more that failed, in results.jsonl"
    assert long[-2].startswith("not reached: job 0, job 1, ")
    assert len("\n".join(long)) < 12_000


def test_rows_that_are_not_as_expected_hide_no_others(module):
    table = module("gpu_table").table
    rows = [{"what": "tests", "counts": {"passed": 3}}, {"what": "head", "preset": "210m"}]
    assert table(rows) == ["tests: 3 passed", "head: not shown, KeyError: 'loss_error'; read results.jsonl"]
