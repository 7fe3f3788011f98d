"""Division of a model's shape among tensor-parallel ranks and pipeline stages: arithmetic and checks, without torch.

The last stage costs more than its blocks. By model FLOPs the head is worth V x D x (targets per position) / (parameters
of a block) blocks: with 128,256 tokens, 2.6 in the preset `1b` if 40 % of the positions are targets, and 10.4 in
`210m` if all are. So stages differ in their number of blocks.
"""

import math
from enum import Enum
from itertools import accumulate

from toolkit.core.errors import SettingsError
from toolkit.core.text import counted
from toolkit.model.config import ModelSettings
from toolkit.model.parameters import Axis, parameter_counts
from toolkit.parallel.topology import ParallelSettings


class Sharing(Enum):
    """Way in which tensor-parallel ranks share a weight."""

    COLUMN = "column"
    """Output features: rows of the matrix, and entries of a bias."""
    ROW = "row"
    """Input features: columns of the matrix."""
    VOCABULARY = "vocabulary"
    """Rows of the matrix and entries of a bias, one for each token."""
    INSIDE = "inside"
    """Every rank has the whole weight, and uses it inside a region."""


TENSOR_PARALLEL_TABLE: dict[tuple[Axis, ...], Sharing] = {
    ("HE", "D"): Sharing.COLUMN,
    ("KE", "D"): Sharing.COLUMN,
    ("HE",): Sharing.COLUMN,
    ("KE",): Sharing.COLUMN,
    ("E",): Sharing.INSIDE,
    ("D", "HE"): Sharing.ROW,
    ("F", "D"): Sharing.COLUMN,
    ("D", "F"): Sharing.ROW,
    ("V", "D"): Sharing.VOCABULARY,
    ("V",): Sharing.VOCABULARY,
}
"""Sharing by parameter axes; parameters with other axes are replicated, and used outside of regions."""


def check_tensor_parallel(settings: ModelSettings, tp: int) -> None:
    """Check that `tp` ranks can share a model of this shape."""
    sizes = {
        "num_attention_heads": settings.num_attention_heads,
        "num_key_value_heads": settings.key_value_heads,
        "intermediate_size": settings.intermediate_size,
    }
    if uneven := [f"model.{name}={size}" for name, size in sizes.items() if size % tp]:
        largest = math.gcd(*sizes.values())
        possible = [str(ranks) for ranks in range(1, largest + 1) if largest % ranks == 0]
        raise SettingsError(
            f"tensor parallelism (parallel.tp={tp}) gives each rank the same number of heads and inner features, but "
            f"{tp} does not divide {', '.join(uneven)}.\nSet parallel.tp to {' or '.join(possible)}."
        )


def check_pipeline_parallel(settings: ModelSettings, parallel: ParallelSettings) -> None:
    """Check that the blocks of a model of this shape can be divided into the requested stages."""
    layers, pp, stages = settings.num_hidden_layers, parallel.pp, parallel.stages
    if pp > layers:
        raise SettingsError(
            f"pipeline parallelism (parallel.pp={pp}) needs a block for each stage, but the model has "
            f"{counted(layers, 'block')} (model.num_hidden_layers={layers}).\n"
            f"Set parallel.pp to at most {layers}, or make the model deeper."
        )
    if stages is None:
        return
    if len(stages) != pp:
        raise SettingsError(
            f"parallel.stages={list(stages)} gives the blocks of {counted(len(stages), 'stage')}, but "
            f"parallel.pp={pp}.\nSet parallel.pp={len(stages)}, or leave parallel.stages out: stages are then balanced."
        )
    if sum(stages) != layers:
        raise SettingsError(
            f"parallel.stages={list(stages)} adds up to {counted(sum(stages), 'block')}, but the model has {layers} "
            f"(model.num_hidden_layers={layers}).\n"
            "Change one of the two, or leave parallel.stages out: stages are then balanced."
        )


def head_in_blocks(settings: ModelSettings, *, targets_per_position: float) -> float:
    """Cost of the head and the loss in units of blocks, by model FLOPs without those of attention.

    `targets_per_position` is 1 if every position is a target.
    """
    counts = parameter_counts(settings)
    return (counts.transform + counts.embedding) * targets_per_position / counts.layer


def balanced_stages(num_blocks: int, pp: int, *, last_stage_extra: float) -> tuple[int, ...]:
    """Numbers of blocks of `pp` stages, at least one each, that minimize the time of the slowest stage.

    Of stages that differ by one block, the later ones have more: a stage keeps activations of one more micro-batch than
    the next. `last_stage_extra` is the last stage's work besides its blocks, in blocks.
    """
    if pp == 1:
        return (num_blocks,)

    def slowest(last: int) -> float:
        return max(last + last_stage_extra, -(-(num_blocks - last) // (pp - 1)))

    last = min(range(num_blocks - pp + 1, 0, -1), key=slowest)
    share, left = divmod(num_blocks - last, pp - 1)
    return (*(share + (stage >= pp - 1 - left) for stage in range(pp - 1)), last)


def stage_blocks(settings: ModelSettings, parallel: ParallelSettings, *, targets_per_position: float) -> list[range]:
    """Block numbers of each stage: from `parallel.stages`, already checked, if given, else balanced."""
    sizes = parallel.stages or balanced_stages(
        settings.num_hidden_layers,
        parallel.pp,
        last_stage_extra=head_in_blocks(settings, targets_per_position=targets_per_position),
    )
    stops = list(accumulate(sizes))
    return [range(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]
