"""Layers of the encoder: linear, embedding, norms and rotary positions, each exact and fast on CPUs too.

- Linear: in fp32, torch multiplies with MKL, which on AMD CPUs reaches half the speed of oneDNN; torch uses oneDNN for
  tensors in its layout (`Tensor.to_mkldnn`). Both accumulate in fp32 and differ by rounding.
- Embedding: torch's CPU backward adds the gradients of a token's positions one after another in the weights' dtype. In
  bf16, with eight bits, such a sum stops growing after a few hundred terms, and the mask token alone makes up 40 % of a
  micro-batch. On CUDA, torch sorts the positions and sums in fp32.
- LayerNorm: torch's CPU backward sums its weight's gradient the same way, so bf16 is computed in fp32 there.
- RMSNorm and rotary positions have their own backward passes: autograd would make another pass over every fp32
  intermediate. Both compute in fp32 whatever the model's dtype (in fp64 if that is its dtype) and cast back.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.model.config import ModelSettings, RopeScaling
from toolkit.model.families import family_of

# Bound at import: ZeRO-3 replaces it with a function that does not support the oneDNN layout.
_torch_linear = torch.nn.functional.linear
_CPU_INFO = Path("/proc/cpuinfo")

Products = Callable[[Tensor, "Sequence[Linear]"], tuple[Tensor, ...]]
"""`separate_products` or `joined_products`."""

RopeCosSin = tuple[Tensor, Tensor]
"""Cosines and signed sines of each position's rotary angles, both (T, 1, E)."""


class Linear(nn.Linear):
    """`nn.Linear` that multiplies with `linear`."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return linear(input, self.weight, self.bias)


class Embedding(nn.Embedding):
    """`nn.Embedding` that looks up rows with `embed`."""

    def forward(self, input: Tensor) -> Tensor:
        """(T,) int64 -> (T, D)."""
        return embed(input, self.weight)


class LayerNorm(nn.Module):
    """Layer norm with a weight and no bias (Ba et al. 2016)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """(T, D) -> (T, D)."""
        is_summed_in_bf16 = hidden_TD.device.type == "cpu" and self.weight.dtype.itemsize <= 2
        dtype = torch.float32 if is_summed_in_bf16 else hidden_TD.dtype
        normed_TD = torch.nn.functional.layer_norm(
            hidden_TD.to(dtype), self.weight.shape, self.weight.to(dtype), eps=self.eps
        )
        return normed_TD.to(hidden_TD.dtype)


class RMSNorm(nn.Module):
    """Root-mean-square norm with a weight (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """(T, D) -> (T, D), or (T, H, E) -> (T, H, E)."""
        rows_TD = hidden_TD.flatten(0, -2)
        return rms_norm(rows_TD, self.weight, eps=self.eps).view_as(hidden_TD)


def norm_of(settings: ModelSettings) -> RMSNorm | LayerNorm:
    """The norm of the model's family, of width D."""
    kinds: dict[str, type[RMSNorm] | type[LayerNorm]] = {"rms": RMSNorm, "layer": LayerNorm}
    return kinds[family_of(settings).norm](settings.hidden_size, settings.rms_norm_eps)


def linear(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """`left @ right.T` of two matrices, plus a bias per row of `right`, in the faster library; differentiable."""
    # Compiled code does not support the oneDNN layout.
    is_eager_fp32 = left.dtype == torch.float32 and left.device.type == "cpu" and not torch.compiler.is_compiling()
    if is_eager_fp32 and _has_slow_mkl():
        product: Tensor = _torch_linear(left.to_mkldnn(), right, bias).to_dense()
        return product
    return _torch_linear(left, right, bias)


def separate_products(input: Tensor, layers: Sequence[Linear]) -> tuple[Tensor, ...]:
    """Output of each layer for the same input: (T, in_features) -> (T, out_features) per layer."""
    return tuple(layer(input) for layer in layers)


def joined_products(input: Tensor, layers: Sequence[Linear]) -> tuple[Tensor, ...]:
    """`separate_products` as one matmul; the results are views of its output.

    The weights are concatenated in each call: on a GPU, the cost is negligible next to the matmul.
    """
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    product = linear(input, torch.cat(weights), torch.cat(biases) if biases else None)
    return torch.split(product, [len(weight) for weight in weights], dim=-1)


def embed(ids_T: Tensor, weight_VD: Tensor) -> Tensor:
    """Rows of a table, (T,) int64 and (V, D) -> (T, D); for bf16 weights on a CPU, the gradient is summed in fp32."""
    if weight_VD.device.type != "cpu" or weight_VD.dtype.itemsize > 2:
        return torch.nn.functional.embedding(ids_T, weight_VD)
    hidden_TD: Tensor = _Lookup.apply(ids_T, weight_VD)  # type: ignore[no-untyped-call]
    return hidden_TD


@cache
def _has_slow_mkl() -> bool:
    """True if the CPU is AMD's and torch has both libraries. A fact, not a timing, so that equal runs stay equal."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    return _CPU_INFO.is_file() and "AuthenticAMD" in _CPU_INFO.read_text(encoding="utf-8")


def rms_norm(hidden_TD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """Hidden states divided by their root mean square, cast back, times a weight: (T, D) -> (T, D)."""
    normed_TD: Tensor = _RMSNorm.apply(hidden_TD, weight_D, eps)  # type: ignore[no-untyped-call]
    return normed_TD


def rope_cos_sin(
    rope_positions_T: Tensor, head_size: int, *, theta: float, scaling: RopeScaling | None = None
) -> RopeCosSin:
    """Rotary angles of each position (Su et al. 2021, RoFormer, section 3.4), stretched if `scaling` is given.

    Computed for each micro-batch rather than kept: a buffer would be cast to bf16 with the module.
    """
    steps = torch.arange(0, head_size, 2, dtype=torch.float32, device=rope_positions_T.device)
    inv_freq = 1.0 / theta ** (steps / head_size)
    if scaling is not None:
        inv_freq = _stretched(inv_freq, scaling)
    angles = rope_positions_T[:, None, None].float() * inv_freq
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _stretched(inv_freq: Tensor, scaling: RopeScaling) -> Tensor:
    """Divide frequencies for longer segments: all (Chen et al. 2023), or those of long wavelength (Llama 3.1)."""
    if scaling.rope_type == "linear":
        return inv_freq / scaling.factor
    # 0 at and beyond the band's low-frequency end, 1 at and beyond its high-frequency end. Operations are in the order
    # of transformers, so that angles are bitwise equal.
    turns = scaling.original_max_position_embeddings / (2 * math.pi / inv_freq)
    band = scaling.high_freq_factor - scaling.low_freq_factor
    share = ((turns - scaling.low_freq_factor) / band).clamp(0, 1)
    return (1 - share) * inv_freq / scaling.factor + share * inv_freq


def apply_rope(tensor_THE: Tensor, rope: RopeCosSin) -> Tensor:
    """Rotate elements i and i + E/2 of each head ("half-split") by their angle: (T, H, E) -> (T, H, E)."""
    rotated_THE: Tensor = _Rope.apply(tensor_THE, *rope)  # type: ignore[no-untyped-call]
    return rotated_THE


class _Lookup(torch.autograd.Function):
    """Rows of a table, (T,) and (V, D) -> (T, D). Saves no weights, which ZeRO-3 releases after the forward pass."""

    @staticmethod
    def forward(ctx: Any, ids_T: Tensor, weight_VD: Tensor) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.shape_VD = weight_VD.shape
        return weight_VD[ids_T]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, Tensor]:
        (ids_T,), (d_hidden_TD,) = ctx.saved_tensors, grad_outputs
        # Only tokens that occur get an fp32 row: a whole fp32 table would cost more than everything else here.
        distinct_ids, row_T = torch.unique(ids_T, return_inverse=True)
        sums = torch.zeros(len(distinct_ids), ctx.shape_VD[1]).index_add_(0, row_T, d_hidden_TD.float())
        d_weight_VD = d_hidden_TD.new_zeros(ctx.shape_VD)
        return None, d_weight_VD.index_copy_(0, distinct_ids, sums.to(d_weight_VD.dtype))


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        wide_TD = hidden_TD.to(torch.promote_types(hidden_TD.dtype, torch.float32))
        # A norm takes one pass; a mean of squares would materialize the squares.
        mean_square_T1 = torch.linalg.vector_norm(wide_TD, dim=-1, keepdim=True).square() / wide_TD.shape[-1]
        inverse_rms_T1 = torch.rsqrt(mean_square_T1 + eps)
        normed_TD = (wide_TD * inverse_rms_T1).to(hidden_TD.dtype)
        ctx.save_for_backward(normed_TD, inverse_rms_T1, weight_D)
        return normed_TD * weight_D

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (d_output_TD,) = grad_outputs
        normed_TD, inverse_rms_T1, weight_D = ctx.saved_tensors
        product_TD = d_output_TD * normed_TD
        d_weight_D = product_TD.sum(0)
        projection_T1 = (product_TD @ weight_D).to(inverse_rms_T1.dtype)[:, None] / normed_TD.shape[-1]
        wide_TD = (d_output_TD * weight_D).to(inverse_rms_T1.dtype)
        d_hidden_TD = torch.addcmul(wide_TD, normed_TD.to(wide_TD.dtype), projection_T1, value=-1).mul_(inverse_rms_T1)
        return d_hidden_TD.to(d_output_TD.dtype), d_weight_D, None


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor_THE: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
        ctx.save_for_backward(cos_T1E, sin_T1E)
        return _rotate(tensor_THE, cos_T1E, sin_T1E)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        cos_T1E, sin_T1E = ctx.saved_tensors
        # The inverse of a rotation is the rotation by the negative angle.
        return _rotate(grad_outputs[0], cos_T1E, -sin_T1E), None, None


def _rotate(tensor_THE: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
    wide_THE = tensor_THE.to(torch.promote_types(tensor_THE.dtype, cos_T1E.dtype))
    # Flip the halves, do not `cat` them: the compiler turns a `cat` into masked loads, one per part.
    halves, cos, sin = (part.view(*part.shape[:-1], 2, part.shape[-1] // 2) for part in (wide_THE, cos_T1E, sin_T1E))
    turned = halves.flip(-2).mul_(sin).addcmul_(halves, cos)
    # The view comes last: torch 2.11 compiles a Function without its gradient if `forward` returns the result of an
    # in-place operation, or of a cast or copy that does nothing.
    return turned.to(tensor_THE.dtype).flatten(-2)
