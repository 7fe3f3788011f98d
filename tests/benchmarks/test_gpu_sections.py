"""Sections of benchmarks/gpu.py at toy size, with a stub of an H100: what a typo would cost a GPU fails here first."""

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.benchmarks.conftest import BENCHMARKS, from_benchmarks
from tests.support import stub_gpu
from tests.support.kernels import plain_flash
from toolkit.core.types import AttentionKind
from toolkit.engine import gpus
from toolkit.testing.distributed import run_distributed

Row = dict[str, Any]
# Packages that nothing here needs.
NOT_HERE = {"FA3 through torch", "FA4 through torch"}


@dataclass(frozen=True)
class ToyJobs:
    """Jobs by name, one after the other; returns their rows."""

    folder: Path
    patterns: tuple[str, ...]

    def __call__(self) -> list[Row]:
        """Measure them."""
        calls, scale = from_benchmarks("gpu_calls"), from_benchmarks("gpu_scale").TOY
        rows = []
        with stub_gpu.stub_gpu():
            for job in calls.jobs_of(None, scale, []):
                if any(fnmatch(job.name, pattern) for pattern in self.patterns):
                    job = replace(job, folder=self.folder)
                    rows += [{"call": 0, "job": job.name, "scale": "toy"} | row for row in job.measure(job)]
        return rows


def _measured(folder: Path, *patterns: str) -> list[Row]:
    """What jobs measured; a row of what is not to be had here is left out, and one with an error fails the test."""
    rows = run_distributed([ToyJobs(folder, patterns)], world_size=1)[0][0]
    assert [row for row in rows if "error" in row] == []
    assert {row["kernel"] for row in rows if "skipped" in row} <= NOT_HERE
    return [row for row in rows if "skipped" not in row]


@pytest.mark.costs(14)
def test_training_steps(tmp_path, module):
    rows = _measured(tmp_path, "start:*", "step:210m", "ablations:*")
    started = [(row["preset"], row["rows"], len(row["losses"])) for row in rows if row["job"].startswith("start")]
    assert started == [(preset, 2, 4) for preset in ("210m", "610m", "1b", "modernbert-base")]
    assert all(row["losses"][0] == pytest.approx(np.log(300), abs=0.08) for row in rows)
    runs = {row["variant"]: row for row in rows if not row["job"].startswith("start")}
    named = {"mlm", "clm", "documents", "12 rows, flash2", "12 rows, flash2, plain forms", "1 rows"}
    assert set(runs) == named | {"zero2", "as shipped", "eager"}
    assert [runs[name]["rows"] for name in ("mlm", "clm", "as shipped", "1 rows")] == [3, 3, 2, 1]
    assert (runs["clm"]["objective"], runs["documents"]["windows"]) == ("clm", "documents")
    plain, shipped = runs["12 rows, flash2, plain forms"]["losses"], runs["12 rows, flash2"]["losses"]
    assert plain == pytest.approx(shipped, rel=1e-3)
    full = runs["mlm"]
    assert (full["memory_gb"], full["reserved_gb"], full["fills_memory"]) == (1.1, 2.1, True)
    assert full["mfu"] == pytest.approx(full["model_flops_per_second"] / 0.5e12, rel=0.5)
    groups = {name for name, milliseconds in full["profile"]["groups_ms"].items() if milliseconds > 0}
    assert groups >= {"head products", "head pointwise", "attention", "feed-forward products", "update"}
    assert groups >= {"q, k, v, o products", "SwiGLU", "norms and residuals", "embedding", "accumulation"}
    assert full["profile"]["trace"] == "trace-210m.json.gz"
    assert (tmp_path / "trace-210m.json.gz").stat().st_size > 1000
    shown = module("gpu_table").table(rows)
    assert shown[1].startswith("210m 12 rows, 4 steps: 2 rows, sdpa, ")


@pytest.mark.costs(14)
def test_kernels_machine_and_peer(tmp_path, module):
    rows = _measured(tmp_path, "machine", "kernels-head", "peer:210m", "all-*")
    found = {row["what"] for row in rows}
    whats = {"software", "gpu", "host", "allocator", "copy", "product", "attention", "head"}
    assert found == whats | {"peer"}
    kernels = {row["kernel"] for row in rows if row["what"] == "attention"}
    assert kernels == {"the toolkit's choice", "queries at targets", "FA2", "flex"}
    errors = [row[f"{name}_error"] for row in rows if row["what"] == "attention" for name in ("output", "d_key")]
    assert max(errors) < 0.02
    assert max(row["loss_error"] for row in rows if row["what"] == "head") < 1e-4
    shown = module("gpu_table").table(rows)
    assert shown[1].startswith(f"machine: name {stub_gpu.NAME}, driver_version 580.0, ")
    assert "[model 3]" in next(line for line in shown if line.startswith("copy"))


@dataclass(frozen=True)
class Launched:
    """`launchers/pretrain.py` with these arguments, in a process that has imported everything; returns its output."""

    arguments: tuple[str, ...]

    def __call__(self) -> str:
        """Run it."""
        program, output = str(BENCHMARKS.parent / "launchers" / "pretrain.py"), io.StringIO()
        argv = mock.patch.object(sys, "argv", [program, *self.arguments])
        with argv, contextlib.redirect_stdout(output):
            runpy.run_path(program)["main"]()
        return output.getvalue()


def _launch(arguments: Sequence[str], environment: dict[str, str]) -> str:
    return run_distributed([Launched(tuple(arguments))], world_size=1)[0][0]


@pytest.mark.costs(15)
def test_a_tiny_run_learns_what_one_in_fp32_does(tmp_path, module, monkeypatch):
    """One of the eight: stopped, started again, evaluated; bf16 as on a GPU. With tolerances of fp32 it fails."""
    launches, scale = module("gpu_launches"), module("gpu_scale")
    monkeypatch.setattr(launches, "launch", _launch)
    monkeypatch.setattr(launches, "AT_ONCE", 1)
    monkeypatch.setattr(launches, "_RUN", launches._RUN.replace("sequence_length = 512", "sequence_length = 128"))
    (case,) = (case for case in launches.CASES if case.name == "mixture")
    job = scale.Job("launches", scale.TOY, 60, launches.measure_launches, items=(case,))
    with stub_gpu.stub_gpu():
        (row,) = launches.measure_launches(job)
    assert "error" not in row
    # 8 steps; two objectives before the first and after the last.
    assert (len(row["loss"]), len(row["cpu_loss"]), len(row["norm"])) == (12, 12, 8)
    assert 0 < row["loss_difference"] < 2e-3
    assert 1e-3 < row["norm_difference"] < 2e-2
    assert row["loss"][-3] < row["loss"][2] - 0.1


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([1.0, 2.0, 3.0], None),
        ([1.0, 2.0, 3.01], None),
        ([1.0, 2.0, 3.02], "loss differs from the CPU's by 0.0067 of it, at most 0.005 was expected"),
        ([1.0, 2.0], "norm differs from the CPU's by inf of it"),
        ([1.0, float("nan"), 3.0], "loss differs from the CPU's by nan of it"),
    ],
)
def test_losses_that_differ_from_a_cpus_are_an_error(module, monkeypatch, tmp_path, found, message):
    launches = module("gpu_launches")

    def train(folder: Path, name: str, *how: object, **named: object) -> tuple[list[Row], str]:
        return [{"loss": loss, "grad_norm": 1.0} for loss in found], "resuming from step 3"

    monkeypatch.setattr(launches, "_train", train)
    reference = mock.Mock()
    reference.result.return_value = [{"loss": loss, "grad_norm": 1.0} for loss in (1.0, 2.0, 3.0)], ""
    row = launches._measure(tmp_path, launches.CASES[0], reference)
    assert (row.get("error") or "").startswith(message or "")
    assert ("error" in row) == (message is not None)
    assert row["cpu_loss"] == [1.0, 2.0, 3.0]


def test_a_launch_that_fails_says_why(module, monkeypatch, tmp_path):
    launches = module("gpu_launches")
    monkeypatch.setattr(launches, "PRETRAIN", tmp_path / "pretrain.py")
    launches.PRETRAIN.write_text("import sys\nprint('error: no such file:', sys.argv[2])\nsys.exit(2)\n")
    with pytest.raises(RuntimeError, match=r"exit code 2: error: no such file: none\.toml"):
        launches.launch(["--config", "none.toml"], {})


def test_the_eight_are_those_that_were_asked_for(module):
    names = [case.name for case in module("gpu_launches").CASES]
    assert names == [
        "heads of 64", "heads of 96", "modernbert", "head norms", "mixture", "zero2", "selective", "eager",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gigabytes", "expected"),
    [(85.5, {"210m": 48, "610m": 18, "1b": 9}), (150.1, {"210m": 72, "610m": 36, "1b": 24})],
    ids=["H100", "H200"],
)
def test_rows_fit_the_card(gigabytes, expected, module, monkeypatch, tmp_path):
    step, scale = module("gpu_step"), module("gpu_scale")
    monkeypatch.setattr(gpus, "has_gpu", lambda: True)
    monkeypatch.setattr(gpus, "gpu_bytes", lambda: int(1e9 * gigabytes))
    for preset, rows in expected.items():
        for asked, found in ((None, rows), (12, min(12, rows)), (3, 3)):
            variant = scale.RunVariant("steps", preset, asked)
            assert step.micro_rows(variant, scale.FULL, tmp_path) == found


def test_the_peer_takes_fewer_rows_where_memory_is_short(module, monkeypatch):
    peer, scale = module("gpu_peer"), module("gpu_scale")

    def measure(job: Any, settings: object) -> Row:
        if job.scale.rows > 3:
            raise torch.OutOfMemoryError("out of memory")
        return {"tokens_per_second": 1.0}

    monkeypatch.setattr(peer, "_measure", measure)
    job = scale.Job("peer:1b", scale.FULL, 60, peer.measure_peer, preset="1b")
    with stub_gpu.stub_gpu():
        (row,) = peer.measure_peer(job)
    assert (row["rows"], row["tokens_per_second"]) == (3, 1.0)


@pytest.mark.parametrize("layout_name", ["random-cut", "documents"])
def test_queries_at_targets_are_compared_with_the_definition(layout_name, module, monkeypatch):
    """With a kernel of the CPU in the place of a GPU's: right, its errors are those of bf16; with wrong bounds, not."""
    attention = module("gpu_attention")
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
        with stub_gpu.stub_gpu():
            monkeypatch.setattr(attention.flash, "flash_kernel", lambda kernel=kernel: kernel)
            row = attention._measure(case, attention.CONTENDERS["queries at targets"], repeats=1)
        assert [row[name] < 0.02 for name in names] == [is_right] * 4


@pytest.mark.long
@pytest.mark.parametrize("call", ["contact", "numbers"])
def test_a_call_runs_at_toy_size(call, tmp_path):
    """By the command line, each job in a process of its own: the eight runs by the launcher, and the tests, too."""
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--toy", "--call", call, "--out", str(tmp_path)]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=1500, check=False)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row for row in rows if "error" in row] == []
    assert done.returncode == 0, done.stderr
    if call == "contact":
        assert sum(row.get("what") == "launch" for row in rows) == 8
        assert next(row["counts"] for row in rows if row.get("what") == "tests").keys() == {"skipped"}
    shown = done.stdout.splitlines()
    assert 8 < len(shown) <= 60
    assert len(done.stdout) < 12_000
    assert "FA3 through torch" in done.stdout if call == "numbers" else True
    kept = {path.name for path in tmp_path.iterdir()} - {"results.jsonl", "log.txt", "table.txt"}
    assert kept == ({f"trace-{preset}.json.gz" for preset in ("210m", "610m", "1b")} if call == "numbers" else set())
