"""Training steps for `benchmarks/gpu.py`, through the toolkit's own loop: rates, memory, compilation, one profile."""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu_forms import plain_forms
from gpu_scale import MICRO_BATCHES, Job, RunVariant, Scale
from gpu_timing import Row, Rows, attempt
from gpu_trace import StepProfiler
from made_up_run import few_steps, write_corpus

from toolkit.engine.engine import Engine
from toolkit.run import RunFolder, load_run
from toolkit.run.division import divide_run
from toolkit.run.load import declare_run
from toolkit.run.metrics import read_lines
from toolkit.run.resolve import ResolvedRun
from toolkit.training import pretrain
from toolkit.training.hooks import Hook
from toolkit.training.loop import Run
from toolkit.training.run_state import StepInfo, StepMetrics
from toolkit.training.set_up import assemble

_LONGEST_REASON = 300


def measure_runs(job: Job) -> Rows:
    """Each run of a job; a first one that compiles leaves its kernels in the cache for the next."""
    for variant in job.items:
        row = {"what": "run", "variant": variant.name, "preset": variant.preset}
        torch._dynamo.reset()
        with plain_forms() if variant.forms == "plain" else nullcontext():
            yield attempt(row, lambda variant=variant: _measure_variant(job, variant))


def _measure_variant(job: Job, variant: RunVariant) -> Row:
    trace = job.folder / f"trace-{variant.preset}.json.gz"
    with tempfile.TemporaryDirectory() as folder:
        return measure(variant, job.scale, Path(folder), trace=trace)


def measure(variant: RunVariant, scale: Scale, folder: Path, *, trace: Path) -> Row:
    """Train a preset for some steps on made-up ids and say how fast it was; if profiled, with one step more."""
    steps, clock = variant.steps or scale.steps, _StepClock()
    skipped = min(scale.skipped_steps, steps - 1)
    profiler = StepProfiler(steps, trace=trace) if variant.is_profiled else None
    rows = micro_rows(variant, scale, folder)
    given = _overrides(variant, scale, folder, rows=rows, steps=steps + variant.is_profiled)
    vocabulary = scale.models[variant.preset].vocab_size
    assert vocabulary is not None
    # Of unequal lengths, since rows that are documents would otherwise have no padding.
    lengths = scale.row_length // 8, scale.row_length
    corpus = write_corpus(folder / "corpus", 4 * MICRO_BATCHES * rows, lengths, vocabulary=vocabulary)
    given.append(f"data.train={corpus}")
    settings, engines = load_run(variant.preset, given), list[Engine]()

    def assembled(resolved: ResolvedRun, engine: Engine, **named: Any) -> Run:
        """The run, watched and without saving, which is part of no step and at 1b takes longer than all of them."""
        engines.append(engine)
        run = assemble(resolved, engine, **named)
        watching = [profiler.watching(engine)] if profiler else []
        never = mock.Mock(is_writing=False, is_due=lambda state: False)
        return replace(run, saver=never, hooks=[*run.hooks, clock, *watching])

    torch.cuda.reset_peak_memory_stats()
    with mock.patch.object(sys.modules["toolkit.training.pretrain"], "assemble", assembled):
        pretrain(settings, ds_config=variant.ds_config)
    lines, kernels = read_lines(RunFolder(folder / "run")), engines[0].kernels
    return {
        "rows": rows,
        "fills_memory": variant.rows is None,
        "sequence_length": settings.data.sequence_length,
        "windows": settings.data.windows,
        "objective": variant.objective,
        "compile": kernels["blocks"] == "compiled",
        "attention": kernels["attention"],
        "losses": [line["loss"] for line in lines],
        "first_norm": lines[0]["grad_norm"],
        "first_step_s": clock.seconds[0],
        "step_s": statistics.median(clock.seconds[skipped:steps]),
        **rates(lines[skipped:steps]),
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        "reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 1),
        "compilation": compilation(),
        **({"profile": profiler.report()} if profiler else {}),
    }


def micro_rows(variant: RunVariant, scale: Scale, folder: Path) -> int:
    """Rows of a micro-batch: as many as the toolkit finds to fit in this GPU's memory, or fewer if fewer are asked."""
    given = _overrides(variant, scale, folder, rows=None, steps=2)
    declared = declare_run(variant.preset, [*given, f"data.train={folder}"])
    fitting = divide_run(declared, ds_config=variant.ds_config, num_ranks=1).batch.micro_batch_rows
    return min(fitting, variant.rows or fitting)


class _StepClock(Hook):
    """Seconds of each step, without evaluation and saving."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def after_step(self, info: StepInfo, metrics: StepMetrics) -> None:
        self.seconds.append(metrics.seconds)


def _overrides(variant: RunVariant, scale: Scale, folder: Path, *, rows: int | None, steps: int) -> list[str]:
    """Overrides that make a few steps out of a preset of many thousand; without rows, those of a step alone."""
    given = few_steps(folder, variant.objective, steps, rows=MICRO_BATCHES * rows if rows else scale.most_rows)
    return [*given, *([f"train.micro_batch_rows={rows}"] if rows else []), *scale.overrides, *variant.overrides]


def rates(lines: Sequence[dict[str, Any]]) -> Row:
    """Medians of what steps logged; `mfu` is None where the device's peak is not known."""
    named = {
        name: [line[name] for line in lines if name in line]
        for name in ("tokens_per_second", "model_flops_per_second", "mfu")
    }
    return {name: statistics.median(values) if values else None for name, values in named.items()}


def compilation() -> Row:
    """Work of Dynamo in this process since its last reset: graphs, seconds, and why it compiled again or gave up."""
    from torch._dynamo import utils

    metrics = utils.get_compilation_metrics()
    getattr(utils, "clear_compilation_metrics", lambda: None)()
    counters = {name: dict(utils.counters[name]) for name in ("stats", "graph_break")}
    utils.counters.clear()
    return {
        "graphs": counters["stats"].get("unique_graphs", 0),
        "seconds": round(sum(_number(entry, "entire_frame_compile_time_s") for entry in metrics), 1),
        "backward_seconds": round(
            sum(_number(entry, "backward_cumulative_compile_time_us") for entry in metrics) / 1e6, 1
        ),
        "recompiles": _texts(metrics, "recompile_reason"),
        "failures": _texts(metrics, "fail_reason"),
        "graph_breaks": [f"{count} x {reason[:_LONGEST_REASON]}" for reason, count in counters["graph_break"].items()],
    }


def _number(entry: Any, field: str) -> float:
    return float(getattr(entry, field, None) or 0)


def _texts(metrics: Sequence[Any], field: str) -> list[str]:
    """Texts of a field of compilations, with the function that was compiled."""
    found = [(entry.co_name, getattr(entry, field, None)) for entry in metrics]
    return [f"{name}: {' '.join(str(text).split())[:_LONGEST_REASON]}" for name, text in found if text]
