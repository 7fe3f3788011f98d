"""Device memory of a rank by purpose, computed from shapes, degrees of parallelism and the ZeRO block.

Parameters of a rank, P, are those of its stage, divided over its tensor-parallel ranks. With d copies of the model, and
e = 2 bytes in bf16, 4 in fp32, DeepSpeed 0.19.8 holds

| | weights | master weights and moments | gradients | communication |
|---|---|---|---|---|
| stage 0 | e P | 8 P | 2 e P | copy |
| stage 1, bf16 | e P | 12 P / d | 4 P | one fp32 gradient, or copy |
| stage 1, fp32 | e P | 12 P / d | 8 P | buckets |
| stage 2 | e P | 12 P / d | 4 P / d + reducing | buckets, and in bf16 a copy of one |
| stage 3 | e P / d + gathered | 12 P / d | 4 P / d | one fp32 bucket, prefetched and largest weight |

where a copy is 4 bytes for each of up to 5e8 gradients, and `buckets` are `reduce_bucket_size` gradients ("auto", the
default: those of the largest parameter), twice with `overlap_comm`. At stage 1 in bf16, gradients of a single
parameter group that are added to their fp32 sums immediately are reduced in place; others are copied. An offloaded
optimizer is in host memory. At stage 3, weights stay gathered from the forward to the backward pass up to
`stage3_max_live_parameters` (1e9).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any, Literal

from toolkit.model.config import ActivationCheckpointing, ModelSettings
from toolkit.model.parameters import EMBEDDING, Axis, after_blocks, before_blocks, of_block, parameter_axes, shape_of
from toolkit.parallel.division import TENSOR_PARALLEL_TABLE, Sharing

if TYPE_CHECKING:
    from toolkit.model.kernels.cross_entropy_forms import CrossEntropyForm

GradientReduction = Literal["in place", "copied"]
ProductForm = Literal["joined", "separate"]

_BUCKET = 500_000_000
_LIVE_PARAMETERS = 1_000_000_000
_PREFETCH = 50_000_000
_MASTER_AND_MOMENTS, _MOMENTS, _FP32 = 12, 8, 4
_EAGER_SHARE = 2.5
PROCESS_BYTES = 10**9
"""Memory of a rank on a CPU without a model: Python, torch and DeepSpeed."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes that one rank holds at the peak of a step, by purpose."""

    weights: int
    optimizer: int
    gradients: int
    activations: int
    head: int
    communication: int

    @property
    def total(self) -> int:
        """Sum of all; allocator fragmentation and the CUDA context come on top."""
        return sum(astuple(self))

    def describe(self) -> str:
        """Memory by purpose, in GB."""
        return ", ".join(f"{name} {size / 1e9:.1f}" for name, size in asdict(self).items())


@dataclass(frozen=True)
class RankShape:
    """Work of one rank; `model` must have its vocabulary size.

    Activations of `micro_batches` wait for their backward passes at the same time: 1 without a pipeline.
    """

    model: ModelSettings
    tp: int
    blocks: range
    micro_batches: int

    @property
    def parameters(self) -> int:
        """P, the number of parameters."""
        axes = before_blocks(self.model) if self.blocks.start == 0 else {}
        for number in self.blocks:
            axes |= of_block(self.model, number)
        if self.has_head:
            axes |= after_blocks(self.model)
            if self.model.tie_word_embeddings:
                axes[EMBEDDING] = ("V", "D")
        return sum(_share_of(of, self.model, self.tp) for of in axes.values())

    @property
    def has_head(self) -> bool:
        """True if this is the last stage."""
        return self.blocks.stop == self.model.num_hidden_layers


def shapes_of_stages(
    model: ModelSettings, *, tp: int, stages: Sequence[range], num_micro_batches: int
) -> list[RankShape]:
    """Work of a rank of each stage, from the blocks of each stage and the micro-batches per step and rank."""
    # 1F1B: a stage has as many micro-batches in flight as there are stages from it to the end.
    return [
        RankShape(model, tp, blocks, micro_batches=min(len(stages) - stage, num_micro_batches))
        for stage, blocks in enumerate(stages)
    ]


def rank_memory(
    shape: RankShape,
    *,
    dp: int,
    zero: Mapping[str, Any],
    precision: Literal["fp32", "bf16"],
    micro_batch_rows: int,
    sequence_length: int,
    activation_checkpointing: ActivationCheckpointing,
    form: "CrossEntropyForm",
    gradient_reduction: GradientReduction = "in place",
    products: ProductForm = "separate",
) -> RankMemory:
    """Bytes of one rank at the peak of a step, if attention is a flash kernel.

    There are `dp` copies of the model; `zero` is the `zero_optimization` block of the DeepSpeed file, B is
    `micro_batch_rows` and S `sequence_length`. `products` of compiled blocks are joined on a GPU, below stage 3.
    """
    width = 2 if precision == "bf16" else 4
    positions = micro_batch_rows * sequence_length
    weights, optimizer, gradients, communication = _states(shape, dp, zero, width, gradient_reduction)
    activations = width * positions * _activations_per_position(shape, activation_checkpointing)
    if products == "joined":
        activations += width * _joined_weights(shape, activation_checkpointing)
    return RankMemory(weights, optimizer, gradients, activations, _head(shape, positions, width, form), communication)


def memory_on_cpu(memory: RankMemory, *, kept_probabilities: int) -> int:
    """Bytes that a rank uses on a CPU besides `PROCESS_BYTES`, given what it holds and attention's probabilities.

    Uncompiled blocks keep more than is counted above, and the C library does not return freed memory; buckets are not
    touched. Measured: 6M and 16M parameters, micro-batches of 256 to 8,192 positions, fp32 and bf16; within a fifth.
    """
    states = memory.weights + memory.optimizer + memory.gradients
    return states + int(_EAGER_SHARE * (memory.activations + memory.head + kept_probabilities))


def largest_parameter(model: ModelSettings, tp: int) -> int:
    """Number of elements in a rank's largest parameter; `model` must have its vocabulary size."""
    return max(_share_of(axes, model, tp) for axes in set(parameter_axes(model).values()))


def _share_of(axes: tuple[Axis, ...], model: ModelSettings, tp: int) -> int:
    """Number of a parameter's elements on one rank; shares of an uneven dimension are rounded up."""
    shape, sharing = shape_of(axes, model), TENSOR_PARALLEL_TABLE.get(axes, Sharing.INSIDE)
    if sharing is Sharing.INSIDE:
        return math.prod(shape)
    shared = 1 if sharing is Sharing.ROW else 0
    return math.prod(-(-size // tp) if number == shared else size for number, size in enumerate(shape))


def _states(
    shape: RankShape, dp: int, zero: Mapping[str, Any], width: int, reduction: GradientReduction
) -> tuple[int, int, int, int]:
    """(weights, optimizer, gradients, communication)."""
    stage, count = int(zero.get("stage", 0)), shape.parameters
    bucket = _size_in(zero, "reduce_bucket_size", largest_parameter(shape.model, shape.tp))
    buckets = bucket * width * (2 if zero.get("overlap_comm", False) else 1)
    is_offloaded = (zero.get("offload_optimizer") or {}).get("device", "none") != "none"
    master = 0 if is_offloaded else _MASTER_AND_MOMENTS * count // dp
    copy = _FP32 * min(count, _BUCKET)
    if stage == 0:
        return width * count, _MOMENTS * count, 2 * width * count, copy if dp > 1 else 0
    if stage == 1 and width == 2:
        one_gradient = _FP32 * largest_parameter(shape.model, shape.tp)
        return width * count, master, _FP32 * count, copy if reduction == "copied" else one_gradient
    if stage == 1:
        return width * count, master, 2 * _FP32 * count, buckets
    if stage == 2:
        # In bf16 a gradient is freed when its bucket is full; in fp32 none is before the end of the backward pass.
        waiting = width * (min(count, bucket) if width == 2 else count)
        communication = buckets + (_FP32 * min(count, bucket) if width == 2 else 0)
        return width * count, master, _FP32 * count // dp + waiting, communication
    live = min(count, _size_in(zero, "stage3_max_live_parameters", _LIVE_PARAMETERS))
    prefetched = min(count, _size_in(zero, "stage3_prefetch_bucket_size", _PREFETCH)) if dp > 1 else 0
    largest = _share_of(("V", "D"), shape.model, shape.tp)
    communication = _FP32 * bucket + width * prefetched + 2 * (width + _FP32) * largest
    return width * (count // dp + live), master, _FP32 * count // dp, communication


def _size_in(zero: Mapping[str, Any], key: str, default: int) -> int:
    """Number of elements from a DeepSpeed file, which may be 5e8 or "auto"."""
    value = zero.get(key)
    return default if value in (None, "auto") else int(value)


def _activations_per_position(shape: RankShape, mode: ActivationCheckpointing) -> int:
    """Number of activations per position kept for the backward pass, over all blocks and micro-batches in flight."""
    model, tp = shape.model, shape.tp
    hidden, inner = model.hidden_size, model.intermediate_size // tp
    query = model.num_attention_heads * model.head_size // tp
    key_value = model.key_value_heads * model.head_size // tp
    attention = 2 * query + 2 * key_value
    # Inputs and outputs of both norms; queries, keys, values, attention's output; gate, its activation, up, product.
    # Left out, as less than a block: ModernBERT's embedding norm, and its head's transform.
    whole = 4 * hidden + attention + 4 * inner
    kept = {"none": whole, "selective": 3 * hidden + attention + 2 * inner, "full": hidden}[mode]
    return _over_blocks(shape, whole, kept)


def _joined_weights(shape: RankShape, mode: ActivationCheckpointing) -> int:
    """Number of elements in weights of joined products, which the compiler keeps for the backward pass."""
    model = shape.model
    heads = model.num_attention_heads + 2 * model.key_value_heads
    # Query, key and value; and gate and up, in the half of a block that "selective" recomputes.
    attention = heads * model.head_size * model.hidden_size // shape.tp
    whole = attention + 2 * model.intermediate_size * model.hidden_size // shape.tp
    return _over_blocks(shape, whole, {"none": whole, "selective": attention, "full": 0}[mode])


def _over_blocks(shape: RankShape, whole: int, kept: int) -> int:
    """What all blocks keep for all micro-batches in flight, plus what the current block recomputes."""
    return len(shape.blocks) * kept * shape.micro_batches + whole - kept


def _head(shape: RankShape, positions: int, width: int, form: "CrossEntropyForm") -> int:
    """Bytes of a chunk of logits in its form, and of the matrix's gradient, which is summed in fp32."""
    if not shape.has_head:
        return 0
    matrix = _share_of(("V", "D"), shape.model, shape.tp)
    columns = matrix // shape.model.hidden_size
    return form.bytes_per_logit(width) * min(positions, form.rows(columns)) * columns + _FP32 * matrix
