"""AdamW with the paper's settings."""

from typing import TYPE_CHECKING

from pydantic import Field

from toolkit.core.settings import Settings

if TYPE_CHECKING:
    import torch


class OptimizerSettings(Settings):
    """AdamW and gradient clipping (arXiv 2507.00994, appendix)."""

    weight_decay: float = Field(0.1, ge=0, allow_inf_nan=False)
    """Decoupled weight decay."""
    decay_norms_and_embeddings: bool = True
    """Decay norms, embeddings and biases too, as in the paper's code."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(0.95, ge=0, lt=1)
    """Decay of the second moment."""
    epsilon: float = Field(1e-5, gt=0)
    """AdamW's epsilon."""
    grad_clip: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Maximum global gradient norm; 0 disables clipping."""


def build_optimizer(
    module: "torch.nn.Module", settings: OptimizerSettings, *, apart: "torch.nn.Parameter | None" = None
) -> "torch.optim.AdamW":
    """AdamW over all parameters of `module`. The engine sets the learning rate before each step.

    The parameter `apart` gets its own group, so that its layout does not depend on the rest of the module.
    """
    import torch

    decayed: list[torch.nn.Parameter] = []
    undecayed: list[torch.nn.Parameter] = []
    groups = []
    for name, parameter in module.named_parameters():
        exempt = parameter.ndim < 2 or "embed_tokens" in name
        is_decayed = settings.decay_norms_and_embeddings or not exempt
        if parameter is apart:
            groups.append({"params": [parameter], "weight_decay": settings.weight_decay if is_decayed else 0.0})
        else:
            (decayed if is_decayed else undecayed).append(parameter)
    groups.append({"params": decayed, "weight_decay": settings.weight_decay})
    if undecayed:
        groups.append({"params": undecayed, "weight_decay": 0.0})
    return torch.optim.AdamW(groups, lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.epsilon, fused=True)
