"""Forms of the cross-entropy: the computation between the products of a chunk of the head.

`EAGER` makes fp32 copies of a chunk's logits, which small chunks keep cheap; `Compiled` is one function that reads the
logits for loss and normaliser, then reads them and overwrites them with their gradient, in fp32 internally, so that a
chunk may be as large as 32-bit indices allow.

N may be the number of targets of one chunk.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

# Large enough for matmuls at full speed; a chunk's logits in fp32 are V x this x 4 bytes.
_EAGER_ROWS = 1024
_LARGEST_ROWS = 16_384
_ROWS_MULTIPLE = 256
_LARGEST_INDEX = 2**31 - 1


class VocabularyColumns:
    """Columns of the logits on this rank: all of them. Subclasses may have only a part of the vocabulary."""

    def log_softmax(self, logits_NV: Tensor) -> Tensor:
        """Log-probabilities of this rank's columns, normalized over the whole vocabulary; may overwrite the logits."""
        return torch.log_softmax(logits_NV, dim=-1)

    def logsumexp(self, logits_NV: Tensor) -> Tensor:
        """Logarithm of the sum of the exponentials over the whole vocabulary, (N,)."""
        return torch.logsumexp(logits_NV, dim=-1)

    def of_labels(self, labels_N: Tensor) -> Tensor:
        """Column of each label, (N,); negative if this rank does not hold it, or the label is negative."""
        return labels_N

    def sum(self, loss: Tensor) -> Tensor:
        """The loss over the whole vocabulary, from that over this rank's columns."""
        return loss


class CrossEntropyForm:
    """Method that turns a chunk's logits into its loss and their gradient: a sequence of torch operations."""

    def rows(self, vocabulary: int) -> int:
        """Number of targets in a chunk, given the number of its logits' columns."""
        return _EAGER_ROWS

    def bytes_per_logit(self, width: int) -> int:
        """Peak bytes per logit of a chunk, for logits of `width` bytes: twice fp32."""
        return 8

    def losses(self, logits_NV: Tensor, labels_N: Tensor, columns: VocabularyColumns) -> Tensor:
        """The cross-entropies, (N,), 0 if the label's column is not on this rank; may overwrite the logits."""
        wide_NV = logits_NV.to(sum_dtype(logits_NV))
        del logits_NV
        return _losses_of(columns.log_softmax(wide_NV), columns.of_labels(labels_N))

    def losses_and_gradient(
        self, logits_NV: Tensor, labels_N: Tensor, columns: VocabularyColumns, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        """The cross-entropies and the gradient of the logits in their dtype; may overwrite the logits. The caller must
        mask the gradient of targets with a negative label.
        """
        dtype, column_N = logits_NV.dtype, columns.of_labels(labels_N)
        wide_NV = logits_NV.to(sum_dtype(logits_NV))
        del logits_NV
        log_z_N = columns.logsumexp(wide_NV) if z_loss else None
        log_probs_NV = columns.log_softmax(wide_NV) if log_z_N is None else wide_NV.sub_(log_z_N[:, None])
        del wide_NV
        losses_N = _losses_of(log_probs_NV, column_N)
        d_logits_NV = log_probs_NV.exp_()
        if log_z_N is not None:
            d_logits_NV *= 1 + 2 * z_loss * log_z_N[:, None]
        is_here_N1 = (column_N >= 0)[:, None]
        d_logits_NV.scatter_add_(1, column_N.clamp(min=0)[:, None], -is_here_N1.to(d_logits_NV.dtype))
        return losses_N, d_logits_NV.to(dtype)


class Compiled(CrossEntropyForm):
    """One compiled function, for logits of the whole vocabulary."""

    def rows(self, vocabulary: int) -> int:
        """See `CrossEntropyForm`: a chunk has fewer than 2^31 logits, beyond which indices are slower."""
        return min(_LARGEST_ROWS, _LARGEST_INDEX // vocabulary // _ROWS_MULTIPLE * _ROWS_MULTIPLE)

    def bytes_per_logit(self, width: int) -> int:
        """See `CrossEntropyForm`: only the logits."""
        return width

    def losses(self, logits_NV: Tensor, labels_N: Tensor, columns: VocabularyColumns) -> Tensor:
        """See `CrossEntropyForm`."""
        losses_N: Tensor = compiled_parts()[0](_of_any_number(logits_NV), _of_any_number(labels_N))
        return losses_N

    def losses_and_gradient(
        self, logits_NV: Tensor, labels_N: Tensor, columns: VocabularyColumns, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        """See `CrossEntropyForm`."""
        return compiled_parts()[1](_of_any_number(logits_NV), _of_any_number(labels_N), z_loss), logits_NV


EAGER = CrossEntropyForm()


def sum_dtype(tensor: Tensor) -> torch.dtype:
    """Dtype of sums and of the softmax: fp32, or fp64 for fp64 weights."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _losses_of(log_probs_NV: Tensor, column_N: Tensor) -> Tensor:
    losses_N = -log_probs_NV.gather(1, column_N.clamp(min=0)[:, None]).squeeze(1)
    return torch.where(column_N >= 0, losses_N, 0)


def losses_and_normaliser(logits_NV: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and logarithms of the normalisers, both (N,), for logits of any dtype."""
    wide_NV = logits_NV.to(sum_dtype(logits_NV))
    # Written so that the compiler sees a softmax: one read for maximum and sum, against two for `torch.logsumexp`.
    largest_N1 = wide_NV.amax(dim=-1, keepdim=True)
    log_z_N = (largest_N1 + (wide_NV - largest_N1).exp().sum(dim=-1, keepdim=True).log()).squeeze(-1)
    # A masked sum in the same read, not a gather: on a CPU, torch 2.11 would gather after the logits are overwritten.
    is_label_NV = torch.arange(logits_NV.shape[1], device=logits_NV.device) == labels_N[:, None]
    label_N = torch.where(is_label_NV, wide_NV, 0).sum(dim=-1)
    return torch.where(labels_N >= 0, log_z_N - label_N, 0), log_z_N


def losses_of_targets(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
    """The cross-entropies; `Compiled` compiles this for evaluation."""
    return losses_and_normaliser(logits_NV, labels_N)[0]


def losses_and_gradient_(logits_NV: Tensor, labels_N: Tensor, z_loss: float) -> Tensor:
    """The cross-entropies; overwrites the logits with their gradient. `Compiled` compiles this for training."""
    losses_N, log_z_N = losses_and_normaliser(logits_NV, labels_N)
    d_logits_NV = torch.exp(logits_NV.to(log_z_N.dtype) - log_z_N[:, None])
    if z_loss:
        d_logits_NV = d_logits_NV * (1 + 2 * z_loss * log_z_N[:, None])
    column_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
    logits_NV.copy_(d_logits_NV - (column_V == labels_N[:, None]).to(d_logits_NV.dtype))
    return losses_N


@cache
def compiled_parts() -> tuple[Any, Any]:
    """`losses_of_targets` and `losses_and_gradient_`, compiled; one graph each for any number of targets."""
    return torch.compile(losses_of_targets), torch.compile(losses_and_gradient_)


def _of_any_number(tensor: Tensor) -> Tensor:
    """The tensor, with its number of rows marked as dynamic for the compiler."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return tensor
