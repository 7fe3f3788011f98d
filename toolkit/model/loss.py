"""Head and cross-entropy in chunks: the (N, V) logits never exist as a whole.

Per chunk: logits in the weights' dtype, softmax and loss in fp32, and at once the gradients of hidden states and
weights. Backward only multiplies them by the incoming gradient. So the weights are not kept for the backward pass,
which is what lets an engine take them away after the head's forward (ZeRO-3).

Shapes: N target tokens, or those of one chunk, D model width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from toolkit.model.layers import linear

# Large enough for products at full speed; a chunk's logits in fp32 are V x this x 4 bytes.
CHUNK_ROWS = 1024
"""Targets of a chunk."""


class VocabularyColumns:
    """Which columns of the logits are here: all of them. One who holds a part of the vocabulary says otherwise."""

    def log_softmax(self, logits_NV: Tensor) -> Tensor:
        """Log-probabilities of the columns that are here, normalised over all there are; may overwrite the logits."""
        return torch.log_softmax(logits_NV, dim=-1)

    def logsumexp(self, logits_NV: Tensor) -> Tensor:
        """Logarithm of the sum of the exponentials over all columns there are, (N,)."""
        return torch.logsumexp(logits_NV, dim=-1)

    def of_labels(self, labels_N: Tensor) -> Tensor:
        """The column of each label, (N,); negative where it is not here, or the label is negative."""
        return labels_N

    def sum(self, loss: Tensor) -> Tensor:
        """The loss over all columns, from that over those that are here."""
        return loss


_ALL_COLUMNS = VocabularyColumns()


def cross_entropy_sum(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    *,
    columns: VocabularyColumns = _ALL_COLUMNS,
    z_loss: float = 0.0,
) -> Tensor:
    """Sum of the cross-entropies of `hidden_ND @ weight_VD.T` against `labels_N`, as a 0-dim fp32 tensor.

    With a z-loss, the value stays that sum, and the gradient is that of the sum of cross-entropy + z_loss x log(Z)^2,
    where Z is the sum of the exponentials of a target's logits (Chowdhery et al. 2022, PaLM, section 5).

    Args:
        hidden_ND: (N, D); N = 0 is legal, gives 0 and zero gradients.
        weight_VD: (V, D), of the same dtype.
        labels_N: (N,) int64; a negative label weighs nothing.
        columns: of the logits, those that `weight_VD` gives.
        z_loss: its coefficient; 0 leaves it out.
    """
    with_gradients = torch.is_grad_enabled() and (hidden_ND.requires_grad or weight_VD.requires_grad)
    loss: Tensor = _CrossEntropySum.apply(hidden_ND, weight_VD, labels_N, columns, z_loss, with_gradients)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropySum(torch.autograd.Function):
    """See `cross_entropy_sum`. Sums are fp32, or fp64 where the weights are."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        labels_N: Tensor,
        columns: VocabularyColumns,
        z_loss: float,
        with_gradients: bool,
    ) -> Tensor:
        sum_dtype = torch.promote_types(hidden_ND.dtype, torch.float32)
        total = torch.zeros((), dtype=sum_dtype, device=hidden_ND.device)
        d_hidden_ND = torch.empty_like(hidden_ND) if with_gradients else None
        d_weight_VD = torch.zeros_like(weight_VD, dtype=sum_dtype) if with_gradients else None
        for start in range(0, len(hidden_ND), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            d_rows_ND = None if d_hidden_ND is None else d_hidden_ND[rows]
            total += _add_chunk(hidden_ND[rows], weight_VD, labels_N[rows], columns, z_loss, d_rows_ND, d_weight_VD)
        if d_hidden_ND is not None and d_weight_VD is not None:
            ctx.save_for_backward(d_hidden_ND, d_weight_VD)
            ctx.weight_dtype = weight_VD.dtype
        return columns.sum(total)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        (gradient,) = grad_outputs
        d_hidden_ND, d_weight_VD = ctx.saved_tensors
        d_hidden_ND = (d_hidden_ND * gradient).to(d_hidden_ND.dtype)
        return d_hidden_ND, (d_weight_VD * gradient).to(ctx.weight_dtype), None, None, None, None


def _add_chunk(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    columns: VocabularyColumns,
    z_loss: float,
    d_hidden_ND: Tensor | None,
    d_weight_VD: Tensor | None,
) -> Tensor:
    """The loss of one chunk; its gradients are written to `d_hidden_ND` and added to `d_weight_VD`.

    A function, so that its logits are gone before those of the next chunk are made: at V = 128,256 they are 1 GB.
    """
    sum_dtype = torch.promote_types(hidden_ND.dtype, torch.float32)
    is_target_N, column_N = labels_N >= 0, columns.of_labels(labels_N)
    is_here_N, column_N1 = column_N >= 0, column_N.clamp(min=0)[:, None]
    logits_NV = linear(hidden_ND, weight_VD).to(sum_dtype)
    log_z_N = columns.logsumexp(logits_NV) if z_loss else None
    log_probs_NV = columns.log_softmax(logits_NV) if log_z_N is None else logits_NV.sub_(log_z_N[:, None])
    del logits_NV
    losses_N = -log_probs_NV.gather(1, column_N1).squeeze(1)
    loss = torch.where(is_here_N, losses_N, 0).sum()
    if d_hidden_ND is None or d_weight_VD is None:
        return loss
    d_logits_NV = log_probs_NV.exp_()
    if log_z_N is not None:
        d_logits_NV *= 1 + 2 * z_loss * log_z_N[:, None]
    d_logits_NV.scatter_add_(1, column_N1, -is_here_N.to(sum_dtype)[:, None])
    d_logits_NV = d_logits_NV.to(weight_VD.dtype)
    # A padded target is left out here, where it is D numbers, and not above, where it is V.
    d_hidden_ND.copy_(linear(d_logits_NV, weight_VD.T) * is_target_N[:, None])
    hidden_ND = hidden_ND * is_target_N[:, None]
    d_weight_VD += linear(d_logits_NV.T, hidden_ND.T)
    return loss
