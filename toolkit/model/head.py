"""The head: from hidden states to the loss, or to logits."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from toolkit.model.config import ModelSettings
from toolkit.model.families import family_of
from toolkit.model.kernels.cross_entropy import cross_entropy_sum
from toolkit.model.kernels.cross_entropy_forms import EAGER, CrossEntropyForm, VocabularyColumns
from toolkit.model.layers import Linear, linear, norm_of


def transform_of(settings: ModelSettings) -> nn.Module:
    """The family's transform between the last hidden states and the vocabulary projection."""
    kinds: dict[str | None, Callable[[ModelSettings], nn.Module]] = {
        None: nn.Identity,
        "dense": Dense,
        "two products": TwoProducts,
    }
    return kinds[family_of(settings).transform](settings)


class Dense(nn.Module):
    """Linear, GELU and a norm, as in BERT."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.dense = Linear(settings.hidden_size, settings.hidden_size)
        self.norm = norm_of(settings)

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) -> (N, D)."""
        normed: Tensor = self.norm(gelu(self.dense(hidden_ND)))
        return normed


class TwoProducts(nn.Module):
    """Two linear layers of inner width P, each followed by GELU (tanh approximation), as in UltraBERT."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.linear1 = Linear(settings.hidden_size, settings.prediction_head_size)
        self.linear2 = Linear(settings.prediction_head_size, settings.hidden_size)

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) -> (N, D)."""
        hidden_NP = gelu(self.linear1(hidden_ND), approximate="tanh")
        return gelu(self.linear2(hidden_NP), approximate="tanh")


class Head(nn.Module):
    """Vocabulary projection and loss in one module, so that the weights are used in one place."""

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, settings.hidden_size))
        has_bias = family_of(settings).has_head_bias
        self.bias = nn.Parameter(torch.empty(vocab_size)) if has_bias else None
        self.columns = VocabularyColumns()
        self.form: CrossEntropyForm = EAGER
        self.z_loss = 0.0
        """Coefficient of the z-loss, which affects only the gradient."""
        self.losses: list[Tensor] | None = None
        """Collects the targets' cross-entropies, (N,), of forward passes with weights; None: they are not kept."""

    def forward(self, hidden_ND: Tensor, labels_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        """Sum of the cross-entropies, weighted by `weights_N` if given, 0-dim fp32."""
        loss, losses_N = cross_entropy_sum(
            hidden_ND,
            self.weight,
            labels_N,
            weights_N,
            bias_V=self.bias,
            columns=self.columns,
            z_loss=self.z_loss,
            form=self.form,
        )
        if self.losses is not None and losses_N is not None:
            self.losses.append(losses_N)
        return loss

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """(N, D) -> (N, V) fp32."""
        return linear(hidden_ND, self.weight, self.bias).float()
