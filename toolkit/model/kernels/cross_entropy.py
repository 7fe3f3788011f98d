"""Chunked head and cross-entropy: the (N, V) logits are never materialized as a whole.

Per chunk: logits in the weights' dtype, softmax and loss in fp32, and right away the gradients of hidden states and
weights. Backward only multiplies them by the incoming gradient. So the weights are not kept for the backward pass,
which lets an engine release them after the head's forward (ZeRO-3).

The computation between the products is a form: `toolkit.model.kernels.cross_entropy_forms`.
"""

from typing import Any

import torch
from torch import Tensor

from toolkit.model.kernels.cross_entropy_forms import EAGER, CrossEntropyForm, VocabularyColumns, sum_dtype
from toolkit.model.layers import linear

_ALL_COLUMNS = VocabularyColumns()


def cross_entropy_sum(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    weights_N: Tensor | None = None,
    *,
    bias_V: Tensor | None = None,
    columns: VocabularyColumns = _ALL_COLUMNS,
    z_loss: float = 0.0,
    form: CrossEntropyForm = EAGER,
) -> tuple[Tensor, Tensor | None]:
    """The sum over targets of weight x cross-entropy of `hidden_ND @ weight_VD.T + bias_V`, 0-dim fp32; with weights
    also the cross-entropies, (N,), through which no gradient flows.

    With a z-loss, the value stays that sum, and the gradient is that of the sum of cross-entropy + z_loss x log(Z)^2,
    where Z is the sum of the exponentials of a target's logits (Chowdhery et al. 2022, PaLM, section 5).

    Args:
        hidden_ND: (N, D); N = 0 is legal, gives 0 and zero gradients.
        weight_VD: (V, D), of the same dtype.
        labels_N: (N,) int64; targets with a negative label are ignored.
        weights_N: (N,) fp32; None: 1 each.
        bias_V: (V,), of the dtype of the weights; None: no bias.
        columns: the columns of the logits that `weight_VD` produces.
        z_loss: its coefficient; 0 leaves it out.
        form: the computation between the products; `Compiled` only if `columns` are the whole vocabulary.
    """
    with_gradients = torch.is_grad_enabled() and (hidden_ND.requires_grad or weight_VD.requires_grad)
    summed: tuple[Tensor, Tensor | None] = _CrossEntropySum.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, bias_V, labels_N, weights_N, columns, z_loss, form, with_gradients
    )
    return summed


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        labels_N: Tensor,
        weights_N: Tensor | None,
        columns: VocabularyColumns,
        z_loss: float,
        form: CrossEntropyForm,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor | None]:
        losses: list[Tensor] = []
        size = form.rows(len(weight_VD))
        chunks = [slice(start, start + size) for start in range(0, len(hidden_ND), size)]
        if not with_gradients:
            losses += [
                form.losses(linear(hidden_ND[rows], weight_VD, bias_V), labels_N[rows], columns) for rows in chunks
            ]
            return _summed(losses, weights_N, columns, hidden_ND)
        d_hidden_ND, d_weight_VD = torch.empty_like(hidden_ND), None
        d_bias_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=sum_dtype(bias_V))
        for rows in chunks:
            weights = None if weights_N is None else weights_N[rows]
            losses_N, product_VD = _chunk(
                hidden_ND[rows],
                weight_VD,
                bias_V,
                labels_N[rows],
                weights,
                columns,
                z_loss,
                form,
                d_hidden_ND[rows],
                d_bias_V,
            )
            losses.append(losses_N)
            d_weight_VD = product_VD if d_weight_VD is None else d_weight_VD.add_(product_VD)
        if d_weight_VD is None:
            d_weight_VD = torch.zeros_like(weight_VD, dtype=sum_dtype(weight_VD))
        ctx.save_for_backward(d_hidden_ND, d_weight_VD, d_bias_V)
        ctx.weight_dtype = weight_VD.dtype
        total, all_losses_N = _summed(losses, weights_N, columns, hidden_ND)
        if all_losses_N is not None:
            ctx.mark_non_differentiable(all_losses_N)
        return total, all_losses_N

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        gradient = grad_outputs[0]
        d_hidden_ND, d_weight_VD, d_bias_V = ctx.saved_tensors
        d_hidden_ND = (d_hidden_ND * gradient).to(d_hidden_ND.dtype)
        d_bias_V = None if d_bias_V is None else _scaled(d_bias_V, gradient, ctx.weight_dtype)
        return d_hidden_ND, _scaled(d_weight_VD, gradient, ctx.weight_dtype), d_bias_V, *[None] * 6


def _summed(
    losses: list[Tensor], weights_N: Tensor | None, columns: VocabularyColumns, hidden_ND: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Sum over chunks and columns; with weights, which the columns do not know, over each target's columns first."""
    total = torch.zeros((), dtype=sum_dtype(hidden_ND), device=hidden_ND.device)
    if weights_N is None:
        for losses_N in losses:
            total += losses_N.sum()
        return columns.sum(total), None
    losses_N = columns.sum(torch.cat([total.new_zeros(0), *losses]))
    return (losses_N * weights_N).sum(), losses_N


def _chunk(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    labels_N: Tensor,
    weights_N: Tensor | None,
    columns: VocabularyColumns,
    z_loss: float,
    form: CrossEntropyForm,
    d_hidden_ND: Tensor,
    d_bias_V: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Losses of one chunk, and its part of the weights' gradient; that of hidden states is written to `d_hidden_ND`,
    that of the bias added to `d_bias_V`.

    A function of its own, so that a chunk's logits are freed before the next chunk's are allocated.
    """
    losses_N, d_logits_NV = form.losses_and_gradient(linear(hidden_ND, weight_VD, bias_V), labels_N, columns, z_loss)
    # Padded targets are masked here, over D numbers, not above, over V. Targets are weighted here too, with weights not
    # rounded to the dtype of hidden states: the error would scale a whole objective.
    factor_N = labels_N >= 0 if weights_N is None else torch.where(labels_N >= 0, weights_N, 0)
    d_hidden_ND.copy_(linear(d_logits_NV, weight_VD.T) * factor_N[:, None])
    if d_bias_V is not None:
        # For the same reason, factors are divided by the largest before rounding: they are 1 if all are equal.
        largest = factor_N.max().to(d_bias_V.dtype)
        parts_N1 = (factor_N / largest.clamp(min=torch.finfo(d_bias_V.dtype).tiny)).to(d_logits_NV.dtype)[:, None]
        d_bias_V += largest * _wide_product(d_logits_NV.T, parts_N1).squeeze(1)
    return losses_N, _wide_product(d_logits_NV.T, (hidden_ND * factor_N[:, None]).to(hidden_ND.dtype))


def _wide_product(left_VN: Tensor, right_ND: Tensor) -> Tensor:
    """A product in fp32, first rounded to the dtype of its factors only on a CPU: torch has no other way there."""
    dtype = sum_dtype(left_VN)
    if left_VN.is_cuda and left_VN.dtype != dtype:
        return torch.mm(left_VN, right_ND, out_dtype=dtype)
    return linear(left_VN, right_ND.T).to(dtype)


def _scaled(d_weight_VD: Tensor, gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Gradient of the weights in their dtype; on CUDA, `out` avoids an fp32 product of that size."""
    if dtype == d_weight_VD.dtype:
        return d_weight_VD * gradient
    scaled_VD = torch.empty_like(d_weight_VD, dtype=dtype)
    return torch.mul(d_weight_VD, gradient, out=scaled_VD)
