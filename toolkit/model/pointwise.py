"""RMSNorm and rotation with backward passes of their own.

Eagerly, autograd would walk over every fp32 intermediate once more; written out, both take about half the time on a
CPU. Both compute in fp32 whatever the dtype of the model (in fp64 where that is its dtype) and cast back.
"""

import math
from typing import Any

import torch
from torch import Tensor

from toolkit.model.config import RopeScaling

Rotation = tuple[Tensor, Tensor]
"""Cosines and signed sines of each position's angles, both (T, 1, E)."""


def rms_norm(hidden_TD: Tensor, weight_D: Tensor, *, eps: float) -> Tensor:
    """Hidden states over their root mean square, cast back, times a weight: (T, D) -> (T, D)."""
    normed_TD: Tensor = _RMSNorm.apply(hidden_TD, weight_D, eps)  # type: ignore[no-untyped-call]
    return normed_TD


def rotation(positions_T: Tensor, head_size: int, *, theta: float, scaling: RopeScaling | None = None) -> Rotation:
    """The rotary angles of each position (Su et al. 2021, RoFormer, section 3.4), stretched where `scaling` says so.

    Made for each micro-batch rather than kept: a buffer would be cast to bf16 with the module.
    """
    steps = torch.arange(0, head_size, 2, dtype=torch.float32, device=positions_T.device)
    frequencies = 1.0 / theta ** (steps / head_size)
    if scaling is not None:
        frequencies = _stretched(frequencies, scaling)
    angles = positions_T[:, None, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _stretched(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Frequencies for longer segments: divided, all of them (Chen et al. 2023) or those of long waves (Llama 3.1)."""
    if scaling.rope_type == "linear":
        return frequencies / scaling.factor
    # 0 where a wave is as long as the low end of the band or longer, 1 at its high end and beyond. The order of the
    # operations is that of transformers, so that the angles are equal to the last bit.
    turns = scaling.original_max_position_embeddings / (2 * math.pi / frequencies)
    band = scaling.high_freq_factor - scaling.low_freq_factor
    share = ((turns - scaling.low_freq_factor) / band).clamp(0, 1)
    return (1 - share) * frequencies / scaling.factor + share * frequencies


def rotate(tensor_THE: Tensor, angles: Rotation) -> Tensor:
    """Turn number i of a head with number i + E/2 ("half-split") by its angle: (T, H, E) -> (T, H, E)."""
    rotated_THE: Tensor = _Rotate.apply(tensor_THE, *angles)  # type: ignore[no-untyped-call]
    return rotated_THE


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        wide_TD = hidden_TD.to(torch.promote_types(hidden_TD.dtype, torch.float32))
        # A norm is one pass; a mean of squares would write the squares down.
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


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor_THE: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
        ctx.save_for_backward(cos_T1E, sin_T1E)
        return _turn(tensor_THE, cos_T1E, sin_T1E)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        cos_T1E, sin_T1E = ctx.saved_tensors
        # The inverse of a rotation is the rotation back.
        return _turn(grad_outputs[0], cos_T1E, -sin_T1E), None, None


def _turn(tensor_THE: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
    wide_THE = tensor_THE.to(torch.promote_types(tensor_THE.dtype, cos_T1E.dtype))
    first, second = wide_THE.chunk(2, dim=-1)
    turned_THE = torch.cat((second, first), dim=-1).mul_(sin_T1E).addcmul_(wide_THE, cos_T1E)
    return turned_THE.to(tensor_THE.dtype)
