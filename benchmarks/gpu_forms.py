"""Plain forms of what is written so that the compiler reads less, for `benchmarks/gpu.py`: what it is worth."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from toolkit.model import compiled_blocks
from toolkit.model.kernels import cross_entropy_forms


@contextmanager
def plain_forms() -> Iterator[None]:
    """The softmax by torch's own function and the compiler's own way with a `cat`; within."""
    cross_entropy_forms.compiled_parts.cache_clear()
    with (
        mock.patch.object(cross_entropy_forms, "losses_and_normaliser", _losses_and_normaliser),
        mock.patch.object(compiled_blocks, "_compiler_options", dict),
    ):
        yield
    cross_entropy_forms.compiled_parts.cache_clear()


def _losses_and_normaliser(logits_NV: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    wide_NV = logits_NV.to(cross_entropy_forms.sum_dtype(logits_NV))
    log_z_N = torch.logsumexp(wide_NV, dim=-1)
    label_N = logits_NV.gather(1, labels_N.clamp(min=0)[:, None]).squeeze(1).to(wide_NV.dtype)
    return torch.where(labels_N >= 0, log_z_N - label_N, 0), log_z_N
