"""Parts of a model on a rank: shares of its parameters, or those of one stage, allocated on that rank only."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from toolkit.model.config import ModelSettings
from toolkit.model.initialization import initial_weight


@dataclass(frozen=True)
class Share:
    """Part of a parameter that one of `num_shares` ranks holds: an equal slice of one dimension."""

    whole_shape: tuple[int, ...]
    dimension: int
    number: int
    num_shares: int

    @property
    def size(self) -> int:
        """Length of the slice; the last one may reach beyond the parameter's end."""
        return -(-self.whole_shape[self.dimension] // self.num_shares)

    @property
    def start(self) -> int:
        """Start of the slice."""
        return self.number * self.size

    @property
    def filled(self) -> int:
        """Length of the slice's part inside of the parameter."""
        return max(0, min(self.size, self.whole_shape[self.dimension] - self.start))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the share."""
        return (*self.whole_shape[: self.dimension], self.size, *self.whole_shape[self.dimension + 1 :])

    def index_of(self, index: Tensor) -> Tensor:
        """Indices into the whole dimension as indices into this share; -1 for those elsewhere, and negative ones."""
        own = index - self.start
        return torch.where((own >= 0) & (own < self.size), own, -1)

    def take(self, whole: Tensor) -> Tensor:
        """This share of a whole tensor, zero-padded to `shape`; a copy, so that the whole can be freed."""
        part = whole.narrow(self.dimension, min(self.start, whole.shape[self.dimension]), self.filled)
        share = whole.new_zeros(self.shape)
        share.narrow(self.dimension, 0, self.filled).copy_(part)
        return share

    def join(self, shares: Sequence[Tensor]) -> Tensor:
        """The whole tensor, from all shares in order."""
        return torch.cat(list(shares), dim=self.dimension).narrow(self.dimension, 0, self.whole_shape[self.dimension])


def share_of(parameter: Tensor) -> Share | None:
    """The share that a parameter is; None if it is whole."""
    share: Share | None = getattr(parameter, "share", None)
    return share


def needed_share_of(parameter: Tensor) -> Share:
    """`share_of` a parameter that must be a share."""
    share = share_of(parameter)
    assert share is not None
    return share


@torch.no_grad()
def allocate_(part: nn.Module, seed: int, *, settings: ModelSettings) -> None:
    """Allocate and initialize an encoder that was built on the meta device, or a stage of it, in place.

    Each parameter gets its share of the whole one's initial value; only one at a time is whole. Parameters of `part`
    must have their names in the encoder.
    """
    allocated: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in part.named_parameters():
        share = share_of(parameter)
        shape = tuple(parameter.shape) if share is None else share.whole_shape
        value = initial_weight(name, shape, settings=settings, seed=seed)
        allocated[parameter] = nn.Parameter(value if share is None else share.take(value))
        # Keep the attribute that says how it is shared.
        vars(allocated[parameter]).update(vars(parameter))
    # Module by module, since a tied parameter is registered twice.
    for module in part.modules():
        for name, parameter in module.named_parameters(recurse=False):
            module.register_parameter(name, allocated[parameter])
