"""Division of a run over ranks: pipeline stages, the memory of each rank, the micro-batch, the DeepSpeed file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.engine import gpus
from toolkit.engine.ds_config import choose_ds_config, read_ds_config, zero_stage
from toolkit.objectives.mlm import MaskRatioRamp
from toolkit.parallel.division import head_in_blocks, stage_blocks
from toolkit.parallel.memory import RankMemory, rank_memory, shapes_of_stages
from toolkit.parallel.topology import LARGEST_DEFAULT_MICRO_BATCH, BatchPlan, batch_plan, describe_small, topology
from toolkit.run.checks import CHECKS
from toolkit.run.settings import RunSettings, TrainSettings
from toolkit.run.step_plan import BatchPlans, StepPlan

_USABLE_SHARE = 0.85
"""Of a GPU's memory; the rest is for what the allocator loses between blocks, workspaces and the CUDA context."""


@dataclass(frozen=True)
class Division:
    """Division of a run over ranks."""

    batch: BatchPlan
    """A step of `train.global_batch_rows` rows of `data.sequence_length`."""
    ds_config: Mapping[str, Any]
    """The content of the DeepSpeed file."""
    source: str
    """Its path or name."""
    is_compiled: bool
    """Whether blocks and loss go through torch.compile."""
    choices: tuple[str, ...] = ()
    """What was chosen for settings and options that were not given, a line each."""


def divide_run(settings: RunSettings, plan: StepPlan, *, ds_config: str | None, num_ranks: int) -> Division:
    """Division of a run over ranks; its micro-batches fit in a GPU's memory where `model.vocab_size` is known.

    `ds_config` is the path of a DeepSpeed JSON or the name of a shipped one; None or "auto": chosen.
    """
    named, rows = None if ds_config == "auto" else ds_config, settings.train.micro_batch_rows
    batch = batch_of(settings, rows, num_ranks)
    if rows is None and settings.model.vocab_size is not None and gpus.has_gpu():
        division, why = _largest_fitting(settings, plan, named, data_parallel=batch.data_parallel)
        told = [f"train.micro_batch_rows {division.batch.micro_batch_rows}: {why}"]
    else:
        division = _with_file(settings, batch, named)
        is_small = rows is None and batch.is_small(LARGEST_DEFAULT_MICRO_BATCH)
        told = [describe_small([batch.global_batch_rows])] if is_small else []
    for check in CHECKS.division:
        check(settings, division.ds_config, division.source)
    return replace(division, choices=(*told, *division.choices))


def batch_of(settings: RunSettings, micro_batch_rows: int | None, num_ranks: int) -> BatchPlan:
    """Division of a step into micro-batches of so many rows."""
    copies = topology(0, num_ranks, settings.parallel).dp
    return batch_plan(settings.train.global_batch_rows, micro_batch_rows, data_parallel=copies)


def is_compiled(train: TrainSettings, ds_config: Mapping[str, Any]) -> bool:
    """True where blocks and loss are compiled on this machine.

    Unset, not at ZeRO stage 3: DeepSpeed's hooks inside blocks break their graphs until the compiler gives up.
    """
    return (gpus.has_gpu() and zero_stage(ds_config) < 3) if train.compile is None else train.compile


def targets_per_position(settings: RunSettings, objective: str) -> float:
    """Targets of an objective over positions, as far as settings tell: without a mask ratio it counts as 1.

    A ramp counts with its mean.
    """
    ratio = getattr(settings.objectives[objective].settings, "mask_ratio", 1.0)
    return ratio.mean if isinstance(ratio, MaskRatioRamp) else float(ratio)


def blocks_of_stages(settings: RunSettings, plan: StepPlan) -> list[range]:
    """The numbers of the blocks of each pipeline stage; the vocabulary size is known."""
    return stage_blocks(settings.model, settings.parallel, targets_per_position=_mean_targets(settings, plan))


def describe_stages(settings: RunSettings, plan: StepPlan) -> str:
    """The cut that was chosen, and why."""
    sizes = ", ".join(str(len(blocks)) for blocks in blocks_of_stages(settings, plan))
    worth = head_in_blocks(settings.model, targets_per_position=_mean_targets(settings, plan))
    return f"parallel.stages [{sizes}]: balanced by arithmetic; the head is worth {worth:.2g} blocks"


def rank_memories(settings: RunSettings, plan: StepPlan, division: Division) -> list[RankMemory]:
    """Memory of the ranks of each pipeline stage at the peak of a step; one without a pipeline.

    The vocabulary size is known; without a precision, bf16 is assumed.
    """
    # It needs torch, which a run without a GPU is resolved without.
    from toolkit.model.kernels.cross_entropy import EAGER, Compiled

    batch, config = division.batch, division.ds_config
    stages = tuple(len(blocks) for blocks in blocks_of_stages(settings, plan))
    # Micro-batches of all phases have as many positions, or fewer; only one long row can be more.
    rows, length = BatchPlans(batch, plan).largest_micro_batch
    # Tied weights of a pipeline are a parameter group of their own, as are norms and embeddings without weight decay.
    is_tied_pipeline = settings.parallel.pp > 1 and settings.model.tie_word_embeddings
    has_one_group = settings.train.decay_norms_and_embeddings and not is_tied_pipeline
    is_added_at_once = config.get("bf16", {}).get("immediate_grad_update", True)
    is_copied = not is_added_at_once or (batch.data_parallel > 1 and not has_one_group)
    return [
        rank_memory(
            shape,
            dp=batch.data_parallel,
            zero=config.get("zero_optimization", {}),
            precision=settings.precision or "bf16",
            micro_batch_rows=rows,
            sequence_length=length,
            activation_checkpointing=settings.train.activation_checkpointing,
            form=Compiled() if division.is_compiled and settings.parallel.tp == 1 else EAGER,
            gradient_reduction="copied" if is_copied else "in place",
        )
        for shape in shapes_of_stages(
            settings.model, tp=settings.parallel.tp, stages=stages, num_micro_batches=batch.accumulation
        )
    ]


def parts_in_words(memory: RankMemory) -> str:
    """Bytes by what they are for, in GB."""
    return ", ".join(f"{name} {size / 1e9:.1f}" for name, size in asdict(memory).items())


def _with_file(settings: RunSettings, batch: BatchPlan, named: str | None) -> Division:
    """The division of a step with the DeepSpeed file that is named, or chosen for it."""
    source, why = choose_ds_config(batch, settings.parallel) if named is None else (named, "")
    config, told = read_ds_config(source), (f"--ds-config {source}: {why}",) if why else ()
    return Division(batch, config, source, is_compiled(settings.train, config), told)


def _largest_fitting(
    settings: RunSettings, plan: StepPlan, named: str | None, *, data_parallel: int
) -> tuple[Division, str]:
    """Division into the largest micro-batches that fit in the memory of a rank's GPU, and the reason in words."""
    gpu_bytes = gpus.gpu_bytes()
    share, usable = settings.train.global_batch_rows // data_parallel, _USABLE_SHARE * gpu_bytes
    for rows in (rows for rows in range(share, 0, -1) if share % rows == 0):
        batch = BatchPlan(settings.train.global_batch_rows, rows, data_parallel)
        division = _with_file(settings, batch, named)
        needed = max(rank_memories(settings, plan, division), key=lambda memory: memory.total)
        if needed.total > usable:
            continue
        few = rows < min(share, LARGEST_DEFAULT_MICRO_BATCH)
        launches = "; of so few, launching kernels takes a large share of the time" if few else ""
        return division, f"the largest share that fits, {needed.total / 1e9:.1f} of {gpu_bytes / 1e9:.1f} GB{launches}"
    raise SettingsError(
        f"one row needs {needed.total / 1e9:.1f} GB on a rank ({parts_in_words(needed)}), and its GPU has "
        f"{gpu_bytes / 1e9:.1f}, of which {usable / 1e9:.1f} are counted on.\nSet train.activation_checkpointing or "
        "parallel.tp, or take a DeepSpeed file of a higher stage; train.micro_batch_rows=1 tries it all the same."
    )


def _mean_targets(settings: RunSettings, plan: StepPlan) -> float:
    """Targets per position over the whole schedule."""
    schedule = plan.schedule
    targets = sum(
        (phase.stop - phase.start) * targets_per_position(settings, phase.objective) for phase in schedule.phases
    )
    return targets / schedule.num_steps
