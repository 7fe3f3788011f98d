"""Division of a run over ranks: pipeline stages, the memory of each rank, the micro-batch, the DeepSpeed file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.checkpoint.manifest import LayoutEntry
from toolkit.core.allocator import total_memory
from toolkit.core.errors import SettingsError
from toolkit.core.text import counted
from toolkit.core.types import AttentionKind
from toolkit.engine import gpus
from toolkit.engine.ds_config import choose_ds_config, read_ds_config, zero_stage
from toolkit.model.flops import attended_pairs
from toolkit.objectives.schedule import Phase
from toolkit.parallel.memory import PROCESS_BYTES, RankMemory, memory_on_cpu, rank_memory, shapes_of_stages
from toolkit.parallel.topology import LARGEST_DEFAULT_MICRO_BATCH, BatchPlan, batch_plan, topology
from toolkit.run.checks import check_division
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.settings import RunSettings, TrainSettings
from toolkit.run.step_plan import StepPlan

_MOST_NAMED = 3
_USABLE_SHARE = 0.85
"""Share of GPU memory to plan with; the rest goes to fragmentation, workspaces and the CUDA context."""


class BatchPlans:
    """Division of each step over the ranks, in micro-batches of at most as many positions as those of `plan`.

    `plan` is for a step of `train.global_batch_rows` rows of `data.sequence_length`.
    """

    def __init__(self, plan: BatchPlan, steps: StepPlan) -> None:
        self.plan, self._steps = plan, steps
        self._plans = {
            (phase.index, rows): self._plan_of(phase, rows)
            for phase in steps.schedule.phases
            for rows in phase.rows.sizes
        }

    def at(self, step: int) -> BatchPlan:
        """Division of the update with 0-based index `step`."""
        return self._plans[self._steps.schedule.phase_at(step).index, self._steps.rows_at(step)]

    def describe(self) -> list[str]:
        """The division of a step in words: a line for each distinct division, with the numbers of its phases."""
        phases = dict[str, list[str]]()
        for number, rows in self._plans:
            if rows == self._steps.schedule.phases[number].rows.full:
                phases.setdefault(self._plans[number, rows].describe(), []).append(str(number + 1))
        if len(phases) == 1:
            return list(phases)
        return [f"phase {', '.join(numbers)}: {division}" for division, numbers in phases.items()]

    @property
    def small(self) -> list[int]:
        """Step sizes, in rows, that ranks run in much smaller micro-batches than the plan's."""
        return sorted({rows for (number, rows), plan in self._plans.items() if plan.is_small(self._largest(number))})

    @property
    def largest_micro_batch(self) -> tuple[int, int]:
        """Rows, and positions per row, of the micro-batch with the most positions."""
        lengths = [data.sequence_length for data in self._steps.data]
        shapes = ((plan.micro_batch_rows, lengths[number]) for (number, _), plan in self._plans.items())
        return max(shapes, key=math.prod)

    def _plan_of(self, phase: Phase, rows: int) -> BatchPlan:
        plan, length = self.plan, self._steps.data[phase.index].sequence_length
        if (rows, length) == (plan.global_batch_rows, self._steps.sequence_length):
            return plan
        share, left = divmod(rows, plan.data_parallel)
        if left:
            is_full = rows == phase.rows.full
            raise SettingsError(
                f"phase {phase.index + 1} of the schedule ({phase.objective}) has "
                f"{'global_batch_rows' if is_full else 'batch_warmup_rows'}={rows}, which "
                f"{counted(plan.data_parallel, 'data-parallel rank')} cannot share evenly.\n"
                "Change it, or --num-procs, so that the ranks divide it."
            )
        largest = min(share, self._largest(phase.index))
        micro = max(count for count in range(1, largest + 1) if share % count == 0)
        return BatchPlan(rows, micro, plan.data_parallel)

    def _largest(self, number: int) -> int:
        """Most rows of a phase that have no more positions than a micro-batch of the plan."""
        positions = self.plan.micro_batch_rows * self._steps.sequence_length
        return max(1, positions // self._steps.data[number].sequence_length)


@dataclass(frozen=True)
class Division:
    """Division of a run over ranks."""

    batches: BatchPlans
    ds_config: Mapping[str, Any]
    """The content of the DeepSpeed file."""
    source: str
    """Its path or name."""
    is_compiled: bool
    """Whether blocks and loss go through torch.compile."""
    choices: tuple[str, ...] = ()
    """Choices made for settings and options that were not given, a line each."""

    @property
    def batch(self) -> BatchPlan:
        """Division of a step of `train.global_batch_rows` rows of `data.sequence_length`."""
        return self.batches.plan


def divide_run(run: DeclaredRun, *, ds_config: str | None, num_ranks: int) -> Division:
    """Division of a run over ranks; its micro-batches fit in a GPU's memory if `model.vocab_size` is known.

    `ds_config` is the path of a DeepSpeed JSON or the name of a shipped one; None or "auto" chooses one.
    """
    settings, named = run.settings, None if ds_config == "auto" else ds_config
    rows = settings.train.micro_batch_rows
    batch = _batch_of(settings, rows, num_ranks)
    if (kept := _as_before(run, batch, named)) is not None:
        is_told = kept.batch != batch or gpus.has_gpu()
        division = kept
        told = [f"train.micro_batch_rows {kept.batch.micro_batch_rows}: as before this start"] if is_told else []
    elif rows is not None or settings.model.vocab_size is None or not gpus.has_gpu():
        division = _with_file(run, batch, named)
        is_small = rows is None and batch.is_small(LARGEST_DEFAULT_MICRO_BATCH)
        told = [describe_small([batch.global_batch_rows])] if is_small else []
    else:
        division, why = _largest_fitting(run, batch, named)
        told = [f"train.micro_batch_rows {division.batch.micro_batch_rows}: {why}"]
    check_division(settings, division.ds_config, division.source)
    return replace(division, choices=(*told, *division.choices))


def read_division(run: DeclaredRun, *, num_ranks: int) -> Division:
    """The division that the run's deepspeed.json was written for."""
    file = run.folder.ds_config_file
    config = run.folder.read_json(file)
    batch = _batch_of(run.settings, config["train_micro_batch_size_per_gpu"], num_ranks)
    if batch.accumulation != config["gradient_accumulation_steps"]:
        written = counted(config["gradient_accumulation_steps"], "micro-batch", "micro-batches")
        raise SettingsError(
            f"{file} was written for {written} a step on each rank, but {counted(num_ranks, 'rank')} "
            f"of this run need {batch.accumulation}.\nStart the run again as a whole: rank 0 then replaces it."
        )
    return Division(BatchPlans(batch, run.plan), config, str(file), is_compiled(run.settings.train, config))


def divide_smaller(run: DeclaredRun, division: Division) -> Division | None:
    """The division with the next smaller micro-batches that divide a rank's rows of a step; None below one row."""
    batch = division.batch
    share = batch.global_batch_rows // batch.data_parallel
    if not (smaller := [rows for rows in range(1, batch.micro_batch_rows) if share % rows == 0]):
        return None
    batch = replace(batch, micro_batch_rows=(rows := smaller[-1]))
    sizes = {"train_micro_batch_size_per_gpu": rows, "gradient_accumulation_steps": batch.accumulation}
    return replace(division, batches=BatchPlans(batch, run.plan), ds_config={**division.ds_config, **sizes})


def _batch_of(settings: RunSettings, micro_batch_rows: int | None, num_ranks: int) -> BatchPlan:
    copies = topology(0, num_ranks, settings.parallel).dp
    return batch_plan(settings.train.global_batch_rows, micro_batch_rows, data_parallel=copies)


def is_compiled(train: TrainSettings, ds_config: Mapping[str, Any]) -> bool:
    """Return whether blocks and loss are compiled on this machine; if unset, only on GPUs."""
    return _is_compiled_on_gpus(train, ds_config) if gpus.has_gpu() else train.compile is True


def _is_compiled_on_gpus(train: TrainSettings, ds_config: Mapping[str, Any]) -> bool:
    """By default not at ZeRO stage 3: DeepSpeed's hooks inside blocks break graphs until the compiler gives up."""
    return zero_stage(ds_config) < 3 if train.compile is None else train.compile


def describe_small(sizes: Sequence[int]) -> str:
    """A note on steps of these sizes, in rows, whose micro-batches are small."""
    shown = ", ".join(f"{rows:,}" for rows in sizes[:_MOST_NAMED]) + (", ..." if len(sizes) > _MOST_NAMED else "")
    return (
        f"steps of {shown} rows are slow: less than half of the rows that fit are in a micro-batch, since no larger "
        "number divides those of a rank"
    )


def rank_memories(run: DeclaredRun, division: Division, *, compiles: bool | None = None) -> list[RankMemory]:
    """Memory of a rank of each pipeline stage at the peak of a step; one entry without a pipeline.

    The vocabulary size must be known; without a precision, bf16 is assumed. `compiles` None: as on GPUs.
    """
    # Needs torch, while a run without a GPU is resolved without it.
    from toolkit.model.kernels.cross_entropy_forms import EAGER, Compiled

    settings, batch, config = run.settings, division.batch, division.ds_config
    # No phase's micro-batches have more positions than the plan's, unless a single row is longer.
    rows, length = division.batches.largest_micro_batch
    # Tied weights of a pipeline are a parameter group of their own, as are norms and embeddings without weight decay.
    is_tied_pipeline = settings.parallel.pp > 1 and settings.model.tie_word_embeddings
    has_one_group = settings.train.decay_norms_and_embeddings and not is_tied_pipeline
    is_added_at_once = config.get("bf16", {}).get("immediate_grad_update", True)
    is_copied = not is_added_at_once or (batch.data_parallel > 1 and not has_one_group)
    compiles = _is_compiled_on_gpus(settings.train, config) if compiles is None else compiles
    return [
        rank_memory(
            shape,
            dp=batch.data_parallel,
            zero=config.get("zero_optimization", {}),
            precision=settings.precision or "bf16",
            micro_batch_rows=rows,
            sequence_length=length,
            activation_checkpointing=settings.train.activation_checkpointing,
            form=Compiled() if compiles and settings.parallel.tp == 1 else EAGER,
            gradient_reduction="copied" if is_copied else "in place",
            products="joined" if compiles and zero_stage(config) < 3 else "separate",
        )
        for shape in shapes_of_stages(
            settings.model, tp=settings.parallel.tp, stages=run.stages, num_micro_batches=batch.accumulation
        )
    ]


def main_memory(run: DeclaredRun, division: Division) -> int:
    """Bytes of a rank's process at the peak of a step on a CPU, where attention keeps probabilities."""
    from toolkit.model.attention import LONGEST_FOR_BMM

    model, (rows, length) = run.settings.model, division.batches.largest_micro_batch
    worst = max(rank_memories(run, division, compiles=division.is_compiled), key=lambda memory: memory.total)
    seen = min(length, LONGEST_FOR_BMM)
    pairs = attended_pairs(model, AttentionKind.BIDIRECTIONAL, [seen]) * rows * length // seen
    width = 4 if run.settings.precision == "fp32" else 2
    shared = run.settings.parallel.tp * run.settings.parallel.pp
    if run.settings.train.activation_checkpointing != "none":
        # Only the block at work keeps them.
        shared *= model.num_hidden_layers
    return PROCESS_BYTES + memory_on_cpu(worst, kept_probabilities=model.num_attention_heads * pairs * width // shared)


def fit_main_memory(run: DeclaredRun, division: Division, *, ranks_here: int) -> Division:
    """The division with the largest micro-batches, up to its own, that fit a CPU machine's memory, whether free or not,
    so that all starts sum alike. Unchanged with `train.micro_batch_rows`, or if it is as before this start.
    """
    is_given = run.settings.train.micro_batch_rows is not None
    if is_given or run.settings.model.vocab_size is None or _is_as_before(run, division):
        return division
    fitting, rows = division, division.batch.micro_batch_rows
    room, needed = _USABLE_SHARE * total_memory() / ranks_here, main_memory(run, division)
    while main_memory(run, fitting) > room and (smaller := divide_smaller(run, fitting)) is not None:
        fitting = smaller
    told = f"with {rows}, a rank would take {needed / 1e9:.1f} of the {room / 1e9:.1f} GB that it may"
    choice = f"train.micro_batch_rows {fitting.batch.micro_batch_rows}: {told}"
    return division if fitting is division else replace(fitting, choices=(*division.choices, choice))


def _as_before(run: DeclaredRun, batch: BatchPlan, named: str | None) -> Division | None:
    """The checkpoint's division, for a run without `train.micro_batch_rows`; None unless all of it is the same."""
    rows = None if run.before is None else run.before.micro_batch_rows
    share = batch.global_batch_rows // batch.data_parallel
    if run.settings.train.micro_batch_rows is not None or rows is None or share % rows:
        return None
    division = _with_file(run, replace(batch, micro_batch_rows=rows), named)
    return division if _is_as_before(run, division) else None


def _is_as_before(run: DeclaredRun, division: Division) -> bool:
    return run.before is not None and layout_of(run, division) == run.before.model_copy(update={"stages": ()})


def layout_of(run: DeclaredRun, division: Division) -> LayoutEntry:
    """The layout that checkpoints of a run record, without the blocks of its pipeline stages."""
    parallel, batch = run.settings.parallel, division.batch
    return LayoutEntry(
        world_size=batch.data_parallel * parallel.tp * parallel.pp,
        zero_stage=zero_stage(division.ds_config),
        tp=parallel.tp,
        pp=parallel.pp,
        micro_batch_rows=batch.micro_batch_rows,
    )


def _with_file(run: DeclaredRun, batch: BatchPlan, named: str | None) -> Division:
    source, why = choose_ds_config(batch, run.settings.parallel) if named is None else (named, "")
    config, told = read_ds_config(source), (f"--ds-config {source}: {why}",) if why else ()
    return Division(BatchPlans(batch, run.plan), config, source, is_compiled(run.settings.train, config), told)


def _largest_fitting(run: DeclaredRun, batch: BatchPlan, named: str | None) -> tuple[Division, str]:
    """Division into the largest micro-batches that fit in the memory of a rank's GPU, and the reason in words."""
    gpu_bytes, share = gpus.gpu_bytes(), batch.global_batch_rows // batch.data_parallel
    usable = _USABLE_SHARE * gpu_bytes
    for rows in (rows for rows in range(share, 0, -1) if share % rows == 0):
        division = _with_file(run, replace(batch, micro_batch_rows=rows), named)
        needed = max(rank_memories(run, division), key=lambda memory: memory.total)
        if needed.total > usable:
            continue
        few = rows < min(share, LARGEST_DEFAULT_MICRO_BATCH)
        launches = "; of so few, launching kernels takes a large share of the time" if few else ""
        return division, f"the largest share that fits, {needed.total / 1e9:.1f} of {gpu_bytes / 1e9:.1f} GB{launches}"
    raise SettingsError(
        f"one row needs {needed.total / 1e9:.1f} GB on a rank ({needed.describe()}), and its GPU has "
        f"{gpu_bytes / 1e9:.1f}, of which {usable / 1e9:.1f} are counted on.\nSet train.activation_checkpointing or "
        "parallel.tp, or take a DeepSpeed file of a higher stage; train.micro_batch_rows=1 tries it all the same."
    )
