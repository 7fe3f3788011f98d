"""Training steps for `benchmarks/gpu.py`, through the toolkit's own loop: rates, memory, compilation, one profile."""

import json
import platform
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_forms import plain_forms
from gpu_scale import MICRO_BATCHES, ROW_LENGTH, VOCABULARY, Job, RunVariant
from gpu_timing import Row, Rows, attempt, has_gpu
from gpu_trace import StepProfiler
from rows import versions

from toolkit.training.hooks import Hook
from toolkit.training.run_state import StepInfo, StepMetrics

PACKAGES = ("torch", "deepspeed", "encoder-pretraining-toolkit")
STEPS, SKIPPED = 12, 4
_LONGEST_REASON = 300


def measure_runs(job: Job) -> Rows:
    """Each run of a job; a first one that compiles leaves its kernels in the cache for the next."""
    for variant in job.runs:
        row = {"what": "run", "variant": variant.name, "preset": variant.preset, "rows": variant.rows}
        torch._dynamo.reset()
        with plain_forms() if variant.forms == "plain" else nullcontext():
            yield attempt(row, lambda variant=variant: _measure_variant(job, variant))


def _measure_variant(job: Job, variant: RunVariant) -> Row:
    name = f"trace-{variant.preset}-{variant.name}.json.gz".replace(" ", "-")
    trace = job.folder / name if variant.keeps_trace else None
    with tempfile.TemporaryDirectory() as folder:
        return measure(
            variant.preset,
            Path(folder),
            micro_rows=variant.rows,
            steps=job.scale.steps,
            skipped=job.scale.skipped_steps,
            overrides=(*job.scale.overrides, *variant.overrides),
            vocabulary=job.scale.vocabulary,
            objective=variant.objective,
            ds_changes=dict(variant.ds_changes),
            profiler=StepProfiler(job.scale.steps, trace=trace) if variant.is_profiled else None,
        )


def measure(
    preset: str,
    folder: Path,
    *,
    micro_rows: int,
    steps: int,
    skipped: int = SKIPPED,
    overrides: Sequence[str] = (),
    vocabulary: int = VOCABULARY,
    objective: str = "mlm",
    ds_changes: dict[str, Any] | None = None,
    profiler: StepProfiler | None = None,
) -> Row:
    """Train a preset for some steps on made-up ids and say how fast it was.

    `vocabulary` counts ids of the corpus; `ds_changes` differ from the shipped `zero1`, by dotted key; the first
    `skipped` steps are not timed; `profiler` looks into one step more.
    """
    from toolkit.run import RunFolder
    from toolkit.run.load import declare_run
    from toolkit.run.metrics import read_lines
    from toolkit.run.resolve import resolve_run
    from toolkit.training.assembly import assemble
    from toolkit.training.building import build_engine
    from toolkit.training.loop import train
    from toolkit.training.pretrain import join
    from toolkit.training.run_state import RunState

    num_steps, clock = steps + (profiler is not None), _StepClock()
    given = _overrides(folder, vocabulary, micro_rows, num_steps, objective)
    declared = declare_run(preset, [*given, *overrides])
    (folder / "run").mkdir()
    resolved = resolve_run(declared, ds_config=_ds_config(folder, ds_changes or {}), num_ranks=1)
    data = resolved.data
    ranks = join()
    if has_gpu():
        torch.cuda.reset_peak_memory_stats()
    engine = build_engine(resolved, resolved.division, ranks=ranks)
    try:
        stop = resolved.plan.schedule.total_steps
        run = assemble(
            resolved,
            engine,
            state=RunState(),
            stop=stop,
            origin={},
            hosts=["localhost"] * ranks.world_size,
            is_stop_requested=lambda: False,
        )
        watching = [profiler.watching(engine)] if profiler else []
        train(replace(run, saver=_NeverSaves(), hooks=[*run.hooks, clock, *watching]), RunState())
    finally:
        engine.close()
    lines = read_lines(RunFolder(folder / "run"))
    device = ranks.device
    return {
        "preset": preset,
        "micro_batch_rows": micro_rows,
        "micro_batches": MICRO_BATCHES,
        "sequence_length": data.run.settings.data.sequence_length,
        "windows": data.run.settings.data.windows,
        "objective": objective,
        "precision": data.run.settings.precision,
        "compile": resolved.division.is_compiled,
        "first_loss": lines[0]["loss"],
        "first_norm": lines[0]["grad_norm"],
        "first_step_s": clock.seconds[0],
        "step_s": statistics.median(clock.seconds[skipped:steps]),
        **rates(lines[skipped:steps]),
        **_memory(),
        "compilation": compilation(),
        **({"profile": profiler.report()} if profiler else {}),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "versions": versions(PACKAGES),
    }


class _StepClock(Hook):
    """Seconds of each step, without evaluation and saving."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def after_step(self, info: StepInfo, metrics: StepMetrics) -> None:
        self.seconds.append(metrics.seconds)


class _NeverSaves:
    """Saving is not part of a step, and at 1b takes longer than all of them."""

    is_writing = False

    def is_due(self, state: Any) -> bool:
        return False

    def advance(self, hooks: Any) -> None:
        pass

    def save_last(self, state: Any, hooks: Any, errors: Any) -> None:
        pass

    def close(self, error: BaseException | None) -> None:
        pass


def _overrides(folder: Path, vocabulary: int, micro_rows: int, steps: int, objective: str) -> list[str]:
    """Overrides that make a few steps out of a preset of many thousand."""
    return [
        f"data.train={_corpus(folder / 'corpus', vocabulary, rows=2 * MICRO_BATCHES * micro_rows)}",
        f"run.dir={folder / 'run'}",
        f'schedule=[{{objective="{objective}",steps={steps}}}]',
        f"train.global_batch_rows={MICRO_BATCHES * micro_rows}",
        f"train.micro_batch_rows={micro_rows}",
        "lr.warmup_steps=1",
        "lr.decay_steps=1",
        "log.every=1",
        "log.tensorboard=false",
    ]


def _corpus(folder: Path, vocabulary: int, *, rows: int) -> Path:
    """Random ids, enough for so many rows of 2,048: what they say does not change how long a step takes."""
    from toolkit.testing.corpora import random_documents, write_token_corpus

    # Of unequal lengths, since rows that are documents would otherwise have no padding.
    lengths = {"min_length": ROW_LENGTH // 8, "max_length": ROW_LENGTH}
    documents = random_documents(2 * rows, vocabulary_size=vocabulary, **lengths)
    special = range(vocabulary - 256, vocabulary)
    return write_token_corpus(
        folder, documents, vocabulary_size=vocabulary, bos=special[0], eos=special[1], mask=special[2], pad=special[3]
    )


def _ds_config(folder: Path, changes: dict[str, Any]) -> str:
    """The shipped `zero1`, or a file beside the run that differs from it."""
    if not changes:
        return "zero1"
    from toolkit.engine.ds_config import read_ds_config

    config = read_ds_config("zero1")
    for key, value in changes.items():
        *blocks, name = key.split(".")
        target = config
        for block in blocks:
            target = target.setdefault(block, {})
        target[name] = value
    path = folder / "ds_config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def rates(lines: Sequence[dict[str, Any]]) -> Row:
    """Medians of what steps logged; `mfu` is None where the device's peak is not known."""
    named = {
        name: [line[name] for line in lines if name in line]
        for name in ("tokens_per_second", "model_flops_per_second", "mfu")
    }
    return {name: statistics.median(values) if values else None for name, values in named.items()}


def _memory() -> Row:
    if not has_gpu():
        return {"memory_gb": None, "reserved_gb": None}
    return {
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        "reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 1),
    }


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
