"""A smaller model's checkpoint, read as that of a larger one (`init.grow`)."""

from collections.abc import Iterable

import torch

from toolkit.checkpoint.read import Checkpoint, ParameterState
from toolkit.model.growth import Growth


class GrownCheckpoint(Checkpoint):
    """The weights of `small`, tiled; each parameter is made when it is read, and moments there are none.

    Args:
        small: the checkpoint.
        growth: from its shape to the larger one.
        names: of the larger model's parameters.
    """

    def __init__(self, small: Checkpoint, growth: Growth, *, names: Iterable[str]) -> None:
        tensors = {name: small.manifest.tensors[growth.source(name)] for name in names}
        super().__init__(small.path, small.manifest.model_copy(update={"tensors": tensors}))
        self._small, self._growth = small, growth

    def fresh_parameter(self, name: str) -> ParameterState:
        """One parameter of the larger model, as for a new optimizer.

        Raises:
            CheckpointError: its file cannot be read.
        """
        weight = self._growth.tile(name, self._small.weight(self._growth.source(name)))
        return ParameterState(name, weight, torch.zeros_like(weight), torch.zeros_like(weight))
