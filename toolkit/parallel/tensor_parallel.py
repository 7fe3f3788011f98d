"""Tensor parallelism: a table says how ranks share a weight, by its axes, and is applied to a whole encoder.

Within a *region*, from the start of an attention or a feed-forward to its last product, every rank works on its own
heads or inner features, without communication (Shoeybi et al. 2019, Megatron-LM, section 3). The ranks share

- by column: the output features of a product that starts a region, so that each rank computes some of them;
- by row: the input features of the product that ends it, whose outputs are summed over the ranks;
- by vocabulary: the rows of embedding and head, and the head's bias. No rank has whole logits for the loss.

The input of a region is the same on all ranks; its gradient is summed over them. So is the gradient of a weight inside
that every rank has whole (the norms of query and key heads). If the ranks do not divide the vocabulary, the last share
ends in rows of zeros that stay zero and are not saved in checkpoints.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from toolkit.model.encoder import Encoder, FeedForward, SelfAttention
from toolkit.model.head import Head
from toolkit.model.kernels.cross_entropy_forms import VocabularyColumns
from toolkit.model.layers import Embedding, Linear, RMSNorm, embed, linear, rms_norm
from toolkit.model.parameters import parameter_axes
from toolkit.parallel.division import TENSOR_PARALLEL_TABLE, Sharing
from toolkit.parallel.shares import Share, needed_share_of


@torch.no_grad()
def share_weights_(encoder: Encoder, group: dist.ProcessGroup) -> None:
    """Replace an encoder's weights by this rank's shares, in place, and its layers by ones that communicate as needed.

    Names are unchanged. The encoder must be the same on all ranks of the group, of a shape that `check_tensor_parallel`
    accepts; if it is on the meta device, so are the shares.
    """
    number, num_shares = dist.get_rank(group), dist.get_world_size(group)
    table = {name: TENSOR_PARALLEL_TABLE.get(axes) for name, axes in parameter_axes(encoder.settings).items()}
    for name, parameter in encoder.named_parameters():
        sharing = table[name]
        if sharing is not None and sharing is not Sharing.INSIDE:
            share = Share(tuple(parameter.shape), 1 if sharing is Sharing.ROW else 0, number, num_shares)
            parameter.data = share.take(parameter.data)
            parameter.share = share  # type: ignore[attr-defined]
    for name, module in list(encoder.named_modules()):
        if isinstance(module, SelfAttention | FeedForward | Head):
            module.register_forward_pre_hook(lambda _, arguments: (enter_region(arguments[0], group), *arguments[1:]))
        if isinstance(module, Head):
            module.columns = SharedColumns(needed_share_of(module.weight), group)
        sharing = table.get(f"{name}.weight")
        if isinstance(module, Embedding):
            encoder.set_submodule(name, VocabularyEmbedding(module, group))
        elif isinstance(module, Linear) and sharing is Sharing.ROW:
            encoder.set_submodule(name, RowLinear(module, group))
        elif isinstance(module, RMSNorm) and sharing is Sharing.INSIDE:
            encoder.set_submodule(name, InsideNorm(module, group))


class RowLinear(nn.Module):
    """The product that ends a region: each rank's inputs times its columns of the matrix, summed over the ranks."""

    def __init__(self, whole: Linear, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight, self._group = whole.weight, group

    def forward(self, input: Tensor) -> Tensor:
        """(T, in_features / ranks) -> (T, out_features)."""
        return leave_region(linear(input, self.weight), self._group)


class InsideNorm(nn.Module):
    """A norm inside a region: its weight applies to each rank's own heads, so its gradient is summed over the ranks."""

    def __init__(self, whole: RMSNorm, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight, self.eps, self._group = whole.weight, whole.eps, group

    def forward(self, hidden_THE: Tensor) -> Tensor:
        """(T, H, E) -> (T, H, E)."""
        weight_E = enter_region(self.weight, self._group)
        return rms_norm(hidden_THE.flatten(0, -2), weight_E, eps=self.eps).view_as(hidden_THE)


class VocabularyEmbedding(nn.Module):
    """An embedding whose rows are shared: each rank looks up the tokens that it has, and the results are summed."""

    def __init__(self, whole: Embedding, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight, self._share, self._group = whole.weight, needed_share_of(whole.weight), group

    def forward(self, ids_T: Tensor) -> Tensor:
        """(T,) int64 -> (T, D)."""
        row_T = self._share.index_of(ids_T)
        is_here_T1 = (row_T >= 0)[:, None]
        hidden_TD = torch.where(is_here_T1, embed(row_T.clamp(min=0), self.weight), 0)
        return leave_region(hidden_TD, self._group)


class SharedColumns(VocabularyColumns):
    """A rank's columns of the logits. Ranks exchange one number per target, and their parts of the loss."""

    def __init__(self, share: Share, group: dist.ProcessGroup) -> None:
        self._share, self._group = share, group

    def log_softmax(self, logits_NV: Tensor) -> Tensor:
        """See `VocabularyColumns`."""
        return logits_NV.sub_(self.logsumexp(logits_NV)[:, None])

    def logsumexp(self, logits_NV: Tensor) -> Tensor:
        """See `VocabularyColumns`; columns without a token are set to minus infinity."""
        logits_NV[:, self._share.filled :] = float("-inf")
        logsumexp_N = torch.logsumexp(logits_NV, dim=-1)
        of_ranks = [torch.empty_like(logsumexp_N) for _ in range(self._share.num_shares)]
        dist.all_gather(of_ranks, logsumexp_N, group=self._group)
        return torch.logsumexp(torch.stack(of_ranks), dim=0)

    def of_labels(self, labels_N: Tensor) -> Tensor:
        """See `VocabularyColumns`."""
        return self._share.index_of(labels_N)

    def sum(self, loss: Tensor) -> Tensor:
        """See `VocabularyColumns`."""
        dist.all_reduce(loss, group=self._group)
        return loss


def enter_region(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The tensor itself, which is the same on all ranks; its gradient is summed over the ranks."""
    entered: Tensor = _EnterRegion.apply(tensor, group)  # type: ignore[no-untyped-call]
    return entered


def leave_region(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of all ranks' tensors; its gradient, the same on all ranks, is passed on unchanged."""
    left: Tensor = _LeaveRegion.apply(tensor, group)  # type: ignore[no-untyped-call]
    return left


class _EnterRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        gradient = grad_outputs[0].contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _LeaveRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = tensor.contiguous().clone()
        dist.all_reduce(total, group=group)
        # See `toolkit.model.layers._rotate`: the result of an operation in place would lose its gradient.
        return total.view_as(total)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0], None
