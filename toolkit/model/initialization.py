"""Initial weights: a function of the run's seed and the parameter's name, so that any rank can make any share."""

import torch
from torch import Tensor

from toolkit.core.draws import keyed_uint64
from toolkit.model.config import ModelSettings
from toolkit.model.encoder import Encoder
from toolkit.model.families import family_of


def initial_weight(name: str, shape: tuple[int, ...], *, settings: ModelSettings, seed: int) -> Tensor:
    """The initial value of one parameter, fp32 on the CPU: ones for a norm, zeros for a bias, else N(0, sd^2).

    `shape` is that of the whole parameter; for a share, slice the result.
    """
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith(".bias"):
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(keyed_uint64(seed, "initialize", name) >> 1)
    deviation = settings.initializer_range
    if name.endswith(family_of(settings).scaled_by_depth):
        deviation /= (2 * settings.num_hidden_layers) ** 0.5
    return torch.empty(shape).normal_(std=deviation, generator=generator)


@torch.no_grad()
def initialize_(encoder: Encoder, seed: int) -> None:
    """Set every parameter to its initial value, in place. A tied head gets the embedding's."""
    for name, parameter in encoder.named_parameters():
        value = initial_weight(name, tuple(parameter.shape), settings=encoder.settings, seed=seed)
        parameter.copy_(value)
