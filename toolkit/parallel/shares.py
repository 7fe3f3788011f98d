"""Parts of a model that a rank holds: shares of its parameters, or those of one stage, allocated where they belong."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from toolkit.model.config import ModelSettings
from toolkit.model.initialization import initial_weight


@dataclass(frozen=True)
class Share:
    """Part of a whole parameter that one of `num_shares` ranks holds: an equal stretch of one dimension."""

    whole_shape: tuple[int, ...]
    dimension: int
    number: int
    num_shares: int

    @property
    def size(self) -> int:
        """Length of the stretch; the last one may reach beyond the parameter's end."""
        return -(-self.whole_shape[self.dimension] // self.num_shares)

    @property
    def start(self) -> int:
        """Beginning of the stretch."""
        return self.number * self.size

    @property
    def filled(self) -> int:
        """Length of the stretch that lies inside the parameter."""
        return max(0, min(self.size, self.whole_shape[self.dimension] - self.start))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the share."""
        return (*self.whole_shape[: self.dimension], self.size, *self.whole_shape[self.dimension + 1 :])

    def index_of(self, index: Tensor) -> Tensor:
        """Places of indices of the whole dimension in this share; -1 for those elsewhere, and for negative ones."""
        own = index - self.start
        return torch.where((own >= 0) & (own < self.size), own, -1)

    def take(self, whole: Tensor) -> Tensor:
        """Part of a whole tensor in this share, filled up with zeros: of `shape`, a copy, so that the whole can go."""
        part = whole.narrow(self.dimension, min(self.start, whole.shape[self.dimension]), self.filled)
        share = whole.new_zeros(self.shape)
        share.narrow(self.dimension, 0, self.filled).copy_(part)
        return share

    def join(self, shares: Sequence[Tensor]) -> Tensor:
        """The whole tensor, from all shares in order."""
        return torch.cat(list(shares), dim=self.dimension).narrow(self.dimension, 0, self.whole_shape[self.dimension])


def share_of(parameter: Tensor) -> Share | None:
    """Part of a whole that a parameter is; None if it is the whole."""
    share: Share | None = getattr(parameter, "share", None)
    return share


def needed_share_of(parameter: Tensor) -> Share:
    """`share_of` a parameter that has one."""
    share = share_of(parameter)
    assert share is not None
    return share


@torch.no_grad()
def allocate_(part: nn.Module, seed: int, *, settings: ModelSettings) -> None:
    """Give an encoder that was built on the meta device, or a stage of it, memory and initial values, in place.

    Each parameter gets its part of the value that the whole one has; one at a time is whole. Parameters of `part` have
    the names that they have in the encoder.
    """
    allocated: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in part.named_parameters():
        share = share_of(parameter)
        shape = tuple(parameter.shape) if share is None else share.whole_shape
        value = initial_weight(name, shape, settings=settings, seed=seed)
        allocated[parameter] = nn.Parameter(value if share is None else share.take(value))
        # What says how it is shared.
        vars(allocated[parameter]).update(vars(parameter))
    # Through the modules' own tables, in which a tied parameter stands twice.
    for module in part.modules():
        for name, parameter in module.named_parameters(recurse=False):
            module.register_parameter(name, allocated[parameter])
