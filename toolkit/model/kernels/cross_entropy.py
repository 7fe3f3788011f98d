"""Head and cross-entropy in chunks: the (N, V) logits never exist as a whole.

Per chunk: logits in the weights' dtype, softmax and loss in fp32, and at once the gradients of hidden states and
weights. Backward only multiplies them by the incoming gradient. So the weights are not kept for the backward pass,
which is what lets an engine take them away after the head's forward (ZeRO-3).

What lies between the products is a form: `Eager` makes fp32 copies of a chunk's logits, small chunks keep them cheap;
`Compiled` is one function that reads the logits for loss and normaliser, and reads and overwrites them with their
gradient, in fp32 inside, so that a chunk may be as large as indices of 32 bits allow.

N may be the targets of one chunk.
"""

from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from toolkit.model.layers import linear

# Large enough for products at full speed; a chunk's logits in fp32 are V x this x 4 bytes.
_EAGER_ROWS = 1024
_LARGEST_ROWS = 16_384
_ROWS_MULTIPLE = 256
_LARGEST_INDEX = 2**31 - 1


class VocabularyColumns:
    """Columns of the logits that are here: all of them. One who holds a part of the vocabulary says otherwise."""

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


class CrossEntropyForm(Protocol):
    """Method that turns a chunk's logits into its loss and their gradient."""

    def rows(self, vocabulary: int) -> int:
        """Targets of a chunk, with logits of so many columns."""
        ...

    def bytes_per_logit(self, width: int) -> int:
        """Held at most for each of a chunk's logits, where those have so many bytes."""
        ...

    def loss(self, logits_NV: Tensor, labels_N: Tensor, columns: VocabularyColumns) -> Tensor:
        """Sum of the cross-entropies; may overwrite the logits."""
        ...

    def loss_and_gradient(
        self, logits_NV: Tensor, labels_N: Tensor, columns: VocabularyColumns, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        """The same, and the gradient of the logits in their dtype; may overwrite them. What it says of targets with a
        negative label is left out by the caller.
        """
        ...


class Eager:
    """One operation of torch after another."""

    def rows(self, vocabulary: int) -> int:
        """See `CrossEntropyForm`."""
        return _EAGER_ROWS

    def bytes_per_logit(self, width: int) -> int:
        """See `CrossEntropyForm`: twice fp32."""
        return 8

    def loss(self, logits_NV: Tensor, labels_N: Tensor, columns: VocabularyColumns) -> Tensor:
        """See `CrossEntropyForm`."""
        wide_NV = logits_NV.to(sum_dtype(logits_NV))
        del logits_NV
        return _sum_of_losses(columns.log_softmax(wide_NV), columns.of_labels(labels_N))

    def loss_and_gradient(
        self, logits_NV: Tensor, labels_N: Tensor, columns: VocabularyColumns, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        """See `CrossEntropyForm`."""
        dtype, column_N = logits_NV.dtype, columns.of_labels(labels_N)
        wide_NV = logits_NV.to(sum_dtype(logits_NV))
        del logits_NV
        log_z_N = columns.logsumexp(wide_NV) if z_loss else None
        log_probs_NV = columns.log_softmax(wide_NV) if log_z_N is None else wide_NV.sub_(log_z_N[:, None])
        del wide_NV
        loss = _sum_of_losses(log_probs_NV, column_N)
        d_logits_NV = log_probs_NV.exp_()
        if log_z_N is not None:
            d_logits_NV *= 1 + 2 * z_loss * log_z_N[:, None]
        is_here_N1 = (column_N >= 0)[:, None]
        d_logits_NV.scatter_add_(1, column_N.clamp(min=0)[:, None], -is_here_N1.to(d_logits_NV.dtype))
        return loss, d_logits_NV.to(dtype)


class Compiled:
    """One compiled function, for logits of the whole vocabulary."""

    def rows(self, vocabulary: int) -> int:
        """See `CrossEntropyForm`: logits of a chunk have fewer than 2^31 numbers, beyond which indices are slower."""
        return min(_LARGEST_ROWS, _LARGEST_INDEX // vocabulary // _ROWS_MULTIPLE * _ROWS_MULTIPLE)

    def bytes_per_logit(self, width: int) -> int:
        """See `CrossEntropyForm`: the logits alone."""
        return width

    def loss(self, logits_NV: Tensor, labels_N: Tensor, columns: VocabularyColumns) -> Tensor:
        """See `CrossEntropyForm`."""
        loss: Tensor = compiled_parts()[0](_of_any_number(logits_NV), _of_any_number(labels_N))
        return loss

    def loss_and_gradient(
        self, logits_NV: Tensor, labels_N: Tensor, columns: VocabularyColumns, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        """See `CrossEntropyForm`."""
        return compiled_parts()[1](_of_any_number(logits_NV), _of_any_number(labels_N), z_loss), logits_NV


EAGER = Eager()


def cross_entropy_sum(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    *,
    columns: VocabularyColumns = _ALL_COLUMNS,
    z_loss: float = 0.0,
    form: CrossEntropyForm = EAGER,
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
        form: of what lies between the products; `Compiled` where `columns` are all there are.
    """
    with_gradients = torch.is_grad_enabled() and (hidden_ND.requires_grad or weight_VD.requires_grad)
    loss: Tensor = _CrossEntropySum.apply(hidden_ND, weight_VD, labels_N, columns, z_loss, form, with_gradients)  # type: ignore[no-untyped-call]
    return loss


def sum_dtype(tensor: Tensor) -> torch.dtype:
    """Dtype of sums and of the softmax: fp32, or fp64 where the weights are."""
    return torch.promote_types(tensor.dtype, torch.float32)


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        labels_N: Tensor,
        columns: VocabularyColumns,
        z_loss: float,
        form: CrossEntropyForm,
        with_gradients: bool,
    ) -> Tensor:
        total = torch.zeros((), dtype=sum_dtype(hidden_ND), device=hidden_ND.device)
        chunks = [
            slice(start, start + form.rows(len(weight_VD)))
            for start in range(0, len(hidden_ND), form.rows(len(weight_VD)))
        ]
        if not with_gradients:
            for rows in chunks:
                total += form.loss(linear(hidden_ND[rows], weight_VD), labels_N[rows], columns)
            return columns.sum(total)
        d_hidden_ND, d_weight_VD = torch.empty_like(hidden_ND), None
        for rows in chunks:
            loss, product_VD = _chunk(
                hidden_ND[rows], weight_VD, labels_N[rows], columns, z_loss, form, d_hidden_ND[rows]
            )
            total += loss
            d_weight_VD = product_VD if d_weight_VD is None else d_weight_VD.add_(product_VD)
        if d_weight_VD is None:
            d_weight_VD = torch.zeros_like(weight_VD, dtype=sum_dtype(weight_VD))
        ctx.save_for_backward(d_hidden_ND, d_weight_VD)
        ctx.weight_dtype = weight_VD.dtype
        return columns.sum(total)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None, None, None, None]:
        (gradient,) = grad_outputs
        d_hidden_ND, d_weight_VD = ctx.saved_tensors
        d_hidden_ND = (d_hidden_ND * gradient).to(d_hidden_ND.dtype)
        return d_hidden_ND, _scaled(d_weight_VD, gradient, ctx.weight_dtype), None, None, None, None, None


def _chunk(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    columns: VocabularyColumns,
    z_loss: float,
    form: CrossEntropyForm,
    d_hidden_ND: Tensor,
) -> tuple[Tensor, Tensor]:
    """The loss of one chunk, and its part of the weights' gradient; that of hidden states is written to `d_hidden_ND`.

    A function, so that its logits are gone before those of the next chunk are made.
    """
    loss, d_logits_NV = form.loss_and_gradient(linear(hidden_ND, weight_VD), labels_N, columns, z_loss)
    # A padded target is left out here, where it is D numbers, and not above, where it is V.
    is_target_N1 = (labels_N >= 0)[:, None]
    d_hidden_ND.copy_(linear(d_logits_NV, weight_VD.T) * is_target_N1)
    return loss, _wide_product(d_logits_NV.T, hidden_ND * is_target_N1)


def _wide_product(left_VN: Tensor, right_ND: Tensor) -> Tensor:
    """A product in fp32, rounded to the dtype of its factors before only where torch knows no other way."""
    dtype = sum_dtype(left_VN)
    if left_VN.is_cuda and left_VN.dtype != dtype and _multiplies_into_fp32():
        return torch.mm(left_VN, right_ND, out_dtype=dtype)
    return linear(left_VN, right_ND.T).to(dtype)


@cache
def _multiplies_into_fp32() -> bool:
    """Products of bf16 matrices with an fp32 result on CUDA; torch has them from 2.8 on."""
    return "dtype" in torch.ops.aten.mm.overloads()  # type: ignore[no-untyped-call]


def _scaled(d_weight_VD: Tensor, gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Gradient of the weights in their dtype; an fp32 product of that size exists in no dtype but this one."""
    if dtype == d_weight_VD.dtype:
        return d_weight_VD * gradient
    scaled_VD = torch.empty_like(d_weight_VD, dtype=dtype)
    return torch.mul(d_weight_VD, gradient, out=scaled_VD)


def _sum_of_losses(log_probs_NV: Tensor, column_N: Tensor) -> Tensor:
    losses_N = -log_probs_NV.gather(1, column_N.clamp(min=0)[:, None]).squeeze(1)
    return torch.where(column_N >= 0, losses_N, 0).sum()


def losses_and_normaliser(logits_NV: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the losses, and the logarithms of the normalisers (N,), of logits of any dtype."""
    wide_NV = logits_NV.to(sum_dtype(logits_NV))
    # As the compiler knows a softmax: it then takes largest and sum in one read. Of `torch.logsumexp` it makes two.
    largest_N1 = wide_NV.amax(dim=-1, keepdim=True)
    log_z_N = (largest_N1 + (wide_NV - largest_N1).exp().sum(dim=-1, keepdim=True).log()).squeeze(-1)
    label_N = logits_NV.gather(1, labels_N.clamp(min=0)[:, None]).squeeze(1).to(wide_NV.dtype)
    return torch.where(labels_N >= 0, log_z_N - label_N, 0).sum(), log_z_N


def sum_of_losses(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
    """Sum of the cross-entropies; what `Compiled` compiles for evaluation."""
    return losses_and_normaliser(logits_NV, labels_N)[0]


def sum_of_losses_and_gradient_(logits_NV: Tensor, labels_N: Tensor, z_loss: float) -> Tensor:
    """Sum of the cross-entropies; the logits become their gradient. What `Compiled` compiles for training."""
    loss, log_z_N = losses_and_normaliser(logits_NV, labels_N)
    d_logits_NV = torch.exp(logits_NV.to(log_z_N.dtype) - log_z_N[:, None])
    if z_loss:
        d_logits_NV = d_logits_NV * (1 + 2 * z_loss * log_z_N[:, None])
    column_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
    logits_NV.copy_(d_logits_NV - (column_V == labels_N[:, None]).to(d_logits_NV.dtype))
    return loss


@cache
def compiled_parts() -> tuple[Any, Any]:
    """`sum_of_losses` and `sum_of_losses_and_gradient_`, compiled; one graph each for any number of targets."""
    return torch.compile(sum_of_losses), torch.compile(sum_of_losses_and_gradient_)


def _of_any_number(tensor: Tensor) -> Tensor:
    """The tensor, told to the compiler to have another number of rows each time."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return tensor
