"""Token embeddings whose gradient is summed in fp32.

torch's own backward on a CPU adds the gradients of a token's positions one after another in the dtype of the weights.
In bf16, with eight bits, such a sum stops growing after some hundred terms, and the mask token alone fills 40 % of a
micro-batch: its row would be wrong by half at 32 rows of 256. On CUDA, torch sorts the positions and sums in fp32.
"""

from typing import Any

import torch
from torch import Tensor, nn


class Embedding(nn.Embedding):
    """`nn.Embedding` with an exact backward for bf16 on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """(T,) int64 -> (T, D)."""
        if self.weight.device.type != "cpu" or self.weight.dtype.itemsize > 2:
            return super().forward(input)
        hidden_TD: Tensor = _Lookup.apply(input, self.weight)  # type: ignore[no-untyped-call]
        return hidden_TD


class _Lookup(torch.autograd.Function):
    """Rows of a table, (T,) and (V, D) -> (T, D). Keeps no weights, which ZeRO-3 takes away after the forward pass."""

    @staticmethod
    def forward(ctx: Any, ids_T: Tensor, weight_VD: Tensor) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.shape_VD = weight_VD.shape
        return weight_VD[ids_T]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, Tensor]:
        (ids_T,), (d_hidden_TD,) = ctx.saved_tensors, grad_outputs
        # Only tokens that occur get a row in fp32: a whole table of them would cost more than the rest of this.
        distinct_ids, row_T = torch.unique(ids_T, return_inverse=True)
        sums = torch.zeros(len(distinct_ids), ctx.shape_VD[1]).index_add_(0, row_T, d_hidden_TD.float())
        d_weight_VD = d_hidden_TD.new_zeros(ctx.shape_VD)
        return None, d_weight_VD.index_copy_(0, distinct_ids, sums.to(d_weight_VD.dtype))
