"""What a checkpoint holds for each parameter."""

from dataclasses import dataclass

import torch

TOKENIZER_FOLDER = "tokenizer"


@dataclass(frozen=True)
class ParameterState:
    """A parameter as AdamW sees it: three fp32 CPU tensors of one shape, by Hugging Face name."""

    name: str
    weight: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
