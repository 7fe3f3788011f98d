"""Memory of a run's ranks, and the micro-batch that fits in a GPU's."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.engine.ds_config import zero_stage
from toolkit.parallel.memory import RankMemory, rank_memory, shapes_of_stages
from toolkit.parallel.topology import LARGEST_DEFAULT_MICRO_BATCH, BatchPlan
from toolkit.run.settings import RunSettings
from toolkit.run.stages import blocks_of_stages
from toolkit.run.step_plan import BatchPlans, StepPlan

_USABLE_SHARE = 0.85
"""Of a GPU's memory; the rest is for what the allocator loses between blocks, workspaces and the CUDA context."""


def rank_memories(settings: RunSettings, plan: BatchPlan, config: Mapping[str, Any]) -> list[RankMemory]:
    """What the ranks of each pipeline stage hold at the peak of a step; one without a pipeline.

    Args:
        settings: of the run, with a vocabulary size; without a precision, bf16 is assumed.
        plan: how the ranks share a step.
        config: the content of its DeepSpeed file.
    """
    # It needs torch, which a run without a GPU is resolved without.
    from toolkit.model.kernels.cross_entropy import EAGER, Compiled

    stages = tuple(len(blocks) for blocks in blocks_of_stages(settings))
    # Micro-batches of all phases have as many positions, or fewer; only one long row can be more.
    rows, length = BatchPlans(plan, StepPlan(settings)).largest_micro_batch
    # Tied weights of a pipeline are a parameter group of their own, as are norms and embeddings without weight decay.
    is_tied_pipeline = settings.parallel.pp > 1 and settings.model.tie_word_embeddings
    has_one_group = settings.train.decay_norms_and_embeddings and not is_tied_pipeline
    is_added_at_once = config.get("bf16", {}).get("immediate_grad_update", True)
    is_compiled = settings.train.is_compiled(zero_stage=zero_stage(config))
    is_copied = not is_added_at_once or (plan.data_parallel > 1 and not has_one_group)
    return [
        rank_memory(
            shape,
            dp=plan.data_parallel,
            zero=config.get("zero_optimization", {}),
            precision=settings.precision or "bf16",
            micro_batch_rows=rows,
            sequence_length=length,
            activation_checkpointing=settings.train.activation_checkpointing,
            form=Compiled() if is_compiled and settings.parallel.tp == 1 else EAGER,
            gradient_reduction="copied" if is_copied else "in place",
        )
        for shape in shapes_of_stages(
            settings.model, tp=settings.parallel.tp, stages=stages, num_micro_batches=plan.accumulation
        )
    ]


def parts_in_words(memory: RankMemory) -> str:
    """What it is for, in GB."""
    return ", ".join(f"{name} {size / 1e9:.1f}" for name, size in asdict(memory).items())


def largest_fitting(
    settings: RunSettings,
    config_of: Callable[[BatchPlan], Mapping[str, Any]],
    *,
    data_parallel: int,
    gpu_bytes: int,
) -> tuple[BatchPlan, str]:
    """The division of a step into the largest micro-batches that fit in a GPU's memory, and the reason in words.

    Args:
        settings: of the run, with a vocabulary size.
        config_of: the content of the DeepSpeed file of a division.
        data_parallel: copies of the model.
        gpu_bytes: memory of the GPU of a rank.

    Raises:
        SettingsError: not even one row fits.
    """
    share, usable = settings.train.global_batch_rows // data_parallel, _USABLE_SHARE * gpu_bytes
    for rows in (rows for rows in range(share, 0, -1) if share % rows == 0):
        plan = BatchPlan(settings.train.global_batch_rows, rows, data_parallel)
        needed = max(rank_memories(settings, plan, config_of(plan)), key=lambda memory: memory.total)
        if needed.total > usable:
            continue
        few = rows < min(share, LARGEST_DEFAULT_MICRO_BATCH)
        launches = "; of so few, launching kernels takes a large share of the time" if few else ""
        return plan, f"the largest share that fits, {needed.total / 1e9:.1f} of {gpu_bytes / 1e9:.1f} GB{launches}"
    raise SettingsError(
        f"one row needs {needed.total / 1e9:.1f} GB on a rank ({parts_in_words(needed)}), and its GPU has "
        f"{gpu_bytes / 1e9:.1f}, of which {usable / 1e9:.1f} are counted on.\nSet train.activation_checkpointing or "
        "parallel.tp, or take a DeepSpeed file of a higher stage; train.micro_batch_rows=1 tries it all the same."
    )
