"""Forecast of a run: parameters, FLOPs, tokens, steps, disk and memory, as far as settings and data determine them.

Shapes: B rows, S positions in a row, N targets.
"""

import math
from dataclasses import dataclass

import numpy as np

from toolkit.core.allocator import available_memory
from toolkit.core.draws import Draws
from toolkit.core.errors import SettingsError
from toolkit.core.text import counted, rounded
from toolkit.data import Rows
from toolkit.engine.ds_config import zero_stage
from toolkit.engine.gpus import peak_flops
from toolkit.engine.precision import threads_of_rank, timed_speed
from toolkit.model.flops import attended_pairs, training_flops
from toolkit.model.parameters import parameter_counts
from toolkit.objectives.base import Objective, at_progress
from toolkit.objectives.registry import get
from toolkit.objectives.schedule import Phase
from toolkit.run.data import RunData
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.division import Division, main_memory, rank_memories
from toolkit.run.settings import RunSettings

_SAMPLED_ROWS = 32
# Two points of a phase, equally far from its middle, since ramps are symmetric about it. Neither is where a stair
# begins, which would bias the mean.
_SAMPLED_PROGRESS = (1 / math.pi, 1 - 1 / math.pi)
# Weights and two moments of AdamW, each fp32.
_BYTES_PER_PARAMETER = 12
DEVICES = {"a100": "A100-SXM4-80GB", "h100": "H100 80GB HBM3", "h200": "H200", "b200": "B200"}
DEVICES |= {f"mi{number}x": f"AMD Instinct MI{number}X" for number in (250, 300)}
"""Names of GPUs to plan with, and the device that each stands for."""


@dataclass(frozen=True)
class Machines:
    """GPUs that a run is planned for, all the same one of `DEVICES`; `mfu` is the expected share of their peak."""

    device: str
    mfu: float
    num_ranks: int
    job_hours: float | None = None
    """Time limit of one job."""

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise SettingsError(f"unknown --device {self.device!r}. Known devices: {', '.join(DEVICES)}.")

    @property
    def tflops(self) -> float:
        """Expected model TFLOP/s of one GPU."""
        peak = peak_flops(DEVICES[self.device])
        assert peak is not None
        return self.mfu * peak / 1e12

    def describe(self, flops: float) -> str:
        """Time that model FLOPs take, in words."""
        hours = flops / (self.tflops * 1e12) / 3600
        text = f"{rounded(hours)} GPU hours at {self.mfu:.0%} of {self.tflops / self.mfu:,.0f} TFLOP/s ({self.device})"
        text += f", {rounded(hours / self.num_ranks)} hours on {counted(self.num_ranks, 'rank')}"
        if self.job_hours is None:
            return text
        jobs = max(1, math.ceil(hours / self.num_ranks / self.job_hours))
        return f"{text}: {counted(jobs, 'job')} of at most {self.job_hours:g} hours"


@dataclass(frozen=True)
class Arithmetic:
    """Positions of some steps, and their model FLOPs; None if the vocabulary size is unknown."""

    positions: int
    flops: float | None

    def __add__(self, other: "Arithmetic") -> "Arithmetic":
        flops = None if self.flops is None or other.flops is None else self.flops + other.flops
        return Arithmetic(self.positions + other.positions, flops)


def arithmetic_of(run: DeclaredRun, *, start: int | None = None, data: RunData | None = None) -> Arithmetic:
    """Arithmetic of a run after its first `start` updates (None: all its own); without data, for one-segment rows."""
    plan, is_known = run.plan, run.settings.model.vocab_size is not None
    first, whole = plan.first_step if start is None else start, Arithmetic(0, 0.0)
    for phase in plan.schedule.phases:
        made = phase.rows_before(phase.stop) - phase.rows_before(first)
        positions, flops = made * plan.data[phase.index].sequence_length, None
        if is_known:
            each = sum(phase.mean_share(entry) * _flops_of(run, phase, entry.objective, data) for entry in phase.mix)
            flops = positions * each
        whole += Arithmetic(positions, flops)
    return whole


def checkpoint_bytes(settings: RunSettings) -> int | None:
    """Bytes of a checkpoint on disk; None if the vocabulary size is unknown."""
    if settings.model.vocab_size is None:
        return None
    return parameter_counts(settings.model).total * _BYTES_PER_PARAMETER


def checkpoints_kept(run: DeclaredRun) -> tuple[int, int]:
    """Number of checkpoints at the end, complete and weights-only; one more while the last is written."""
    keep, first, last = run.settings.checkpoint, run.plan.first_step, run.plan.schedule.total_steps
    saved = [step for step in range(first + (first > 0), last + 1) if keep.is_due(step) or step == last]
    newest = saved[-keep.keep :]
    older = len({step for step in saved if keep.is_kept(step)}.difference(newest)) + bool(keep.keep_best)
    return (len(newest), older) if keep.keep_weights_only else (len(newest) + older, 0)


def forecast(run: DeclaredRun, *, data: RunData | None, machines: Machines | None = None) -> list[str]:
    """One line for each figure; without data, figures that need them are left out, and without machines the time."""
    settings, plan, schedule, sizes = run.settings, run.plan, run.plan.schedule, run.plan.step_sizes
    whole = arithmetic_of(run, data=data)
    each = f"{sizes[0]:,}" if len(set(sizes)) == 1 else f"{min(sizes):,} to {max(sizes):,}"
    own = counted(schedule.total_steps - plan.first_step, "step")
    lines = [f"tokens: {whole.positions:,} positions in {own}, {each} a step"]
    lines += [
        f"steps {phase.start + 1:,} to {phase.stop:,}: {phase.shares}, {counted(phase.stop - phase.start, 'step')}"
        f"{plan.describe_changes(phase)}"
        for phase in schedule.phases
        if phase.stop > plan.first_step
    ]
    lines.append(f"learning rate: {plan.describe_learning_rate()}")
    size = checkpoint_bytes(settings)
    if whole.flops is None or size is None:
        return lines
    counts = parameter_counts(settings.model)
    lines.insert(0, f"model: {counts.total:,} parameters, {counts.body_and_embedding:,} without the head")
    of = "" if data is not None else ", for rows of one segment"
    lines.insert(1, f"model FLOPs: {whole.flops / whole.positions:.3g} per token, {whole.flops:.3g} in all{of}")
    if machines is not None:
        lines.append(f"time: {machines.describe(whole.flops)}")
    kept, light = checkpoints_kept(run)
    as_weights = f", {light:,} of them as weights alone" if light else ""
    lines.append(
        f"checkpoints: {_gigabytes(size)} each, {counted(kept + light, 'checkpoint')} kept at the end{as_weights}; "
        f"{_gigabytes((kept + 1 + light / 3) * size)} of disk while the last is written"
    )
    if data is not None:
        corpora = {named.corpus.path: named.corpus for part in data.training for named in part.corpora}
        tokens = sum(one.num_tokens * np.dtype(one.manifest.dtype).itemsize for one in corpora.values())
        lines.append(f"corpora: {_gigabytes(tokens)} of token ids on disk")
    return lines


def forecast_memory(run: DeclaredRun, division: Division) -> list[str]:
    """Memory of the rank that needs most, in one line; empty if the vocabulary size is unknown. bf16 by default."""
    settings = run.settings
    if settings.model.vocab_size is None:
        return []
    memories = rank_memories(run, division)
    worst = max(memories, key=lambda memory: memory.total)
    of = f" of stage {memories.index(worst) + 1}" if len(memories) > 1 else ""
    ranks = division.batch.data_parallel * settings.parallel.pp * settings.parallel.tp
    layout = f"{settings.precision or 'bf16'}, ZeRO stage {zero_stage(division.ds_config)}, {counted(ranks, 'rank')}"
    needed = f"{worst.total / 1e9:.1f} GB ({worst.describe()}; {layout}, flash attention)"
    return [f"memory per rank{of}, on GPUs: {needed}"]


def forecast_here(run: DeclaredRun, division: Division, *, num_ranks: int, flops: float | None) -> list[str]:
    """Main memory of a rank on this machine, which has no GPU, and the time if the speed of its CPU was measured."""
    if run.settings.model.vocab_size is None:
        return []
    free, threads = available_memory() / 1e9, threads_of_rank(num_ranks)
    needed = rounded(main_memory(run, division) / 1e9)
    lines = [f"memory per rank, on this CPU: about {needed} GB; {free:.1f} GB are free"]
    speed = None if run.settings.precision is None else timed_speed(threads, run.settings.precision)
    if speed is not None and flops is not None:
        hours = rounded(flops / speed / num_ranks / 3600)
        lines.append(f"time: about {hours} hours on this CPU, at the {speed / 1e12:.2g} TFLOP/s of a small step")
    return lines


def _flops_of(run: DeclaredRun, phase: Phase, name: str, data: RunData | None) -> float:
    """FLOPs per position of one objective of a phase, averaged over its rows, padding included."""
    settings, length = run.settings, run.plan.data[phase.index].sequence_length
    if data is not None and data.training[phase.index].rows and name in data.objectives:
        return _sampled_flops(settings, data.objectives[name], data.training[phase.index].rows[0])
    declared = settings.objectives[name]
    pairs = attended_pairs(settings.model, get(declared.kind).attention, [length]) / length
    return training_flops(settings.model, tokens=1, targets=run.targets_per_position(name), attended_pairs=pairs)


def _sampled_flops(settings: RunSettings, objective: Objective, made: Rows) -> float:
    samples_B = np.arange(min(_SAMPLED_ROWS, made.num_rows), dtype=np.int64)
    rows = made.read(samples_B, np.zeros_like(samples_B))
    draws = Draws(settings.run.seed, samples_B, num_columns=rows.tokens_BS.shape[1])
    sampled = [at_progress(objective, progress) for progress in _SAMPLED_PROGRESS]
    built = [one.build(rows.tokens_BS, rows.segments_BS, draws) for one in sampled]
    targets = sum(one.positions_N.size for one in built) / len(built)
    sizes = np.concatenate([np.bincount(segments_S)[1:] for segments_S in rows.segments_BS])
    pairs = attended_pairs(settings.model, objective.attention, sizes)
    flops = training_flops(settings.model, tokens=float(sizes.sum()), targets=targets, attended_pairs=pairs)
    return flops / rows.tokens_BS.size


def _gigabytes(size: float) -> str:
    return f"{rounded(size / 1e9)} GB"
