"""The head for `benchmarks/gpu.py`: milliseconds, memory, errors."""

from functools import partial

import torch
from gpu_scale import Job
from gpu_timing import (
    Row,
    Rows,
    attempt,
    device,
    free_memory,
    median_ms,
    peak_gb,
    random,
    relative_error,
    tera_per_second,
)
from torch import Tensor

from toolkit.model.kernels.cross_entropy import cross_entropy_sum
from toolkit.model.kernels.cross_entropy_forms import EAGER, Compiled, CrossEntropyForm

_MATMULS_IN_HEAD = 3


def measure_head(job: Job) -> Rows:
    """Loss and gradients of both forms at the targets of a micro-batch: ms, TFLOP/s, memory, errors against fp64."""
    for preset, settings in job.scale.kernel_models.items():
        assert settings.vocab_size is not None
        torch.manual_seed(0)
        hidden_ND = random(job.scale.targets, settings.hidden_size).requires_grad_()
        weight_VD = random(settings.vocab_size, settings.hidden_size, scale=0.02).requires_grad_()
        labels_N = torch.randint(settings.vocab_size, (job.scale.targets,), device=device())
        inputs = (hidden_ND, weight_VD, labels_N)
        expected = _expected_head(*inputs)
        for name, form in (("compiled", Compiled()), ("eager", EAGER)):
            row = {"what": "head", "preset": preset, "contender": name, "targets": job.scale.targets}
            yield attempt(row, partial(_measure_head, form, inputs, expected, repeats=job.scale.repeats))
        del expected
        free_memory()


def _expected_head(hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients in fp64, some targets at a time."""
    hidden, weight = hidden_ND.detach().double(), weight_VD.detach().double()
    loss = torch.zeros((), dtype=torch.float64, device=hidden.device)
    d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight)
    for start in range(0, len(hidden), 512):
        rows = slice(start, start + 512)
        logits = hidden[rows] @ weight.T
        picked = torch.arange(len(logits), device=logits.device), labels_N[rows]
        log_z = logits.logsumexp(-1)
        loss += (log_z - logits[picked]).sum()
        d_logits = logits.sub_(log_z[:, None]).exp_()
        d_logits[picked] -= 1
        d_hidden[rows] = d_logits @ weight
        d_weight += d_logits.T @ hidden[rows]
    return loss, d_hidden, d_weight


def _measure_head(
    form: CrossEntropyForm,
    inputs: tuple[Tensor, Tensor, Tensor],
    expected: tuple[Tensor, Tensor, Tensor],
    *,
    repeats: int,
) -> Row:
    hidden_ND, weight_VD, _ = inputs

    def loss() -> Tensor:
        return cross_entropy_sum(*inputs, form=form)[0]

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(), (hidden_ND, weight_VD))

    found = (loss().detach(), *both())
    names = ("loss", "d_hidden", "d_weight")
    errors = {f"{n}_error": relative_error(f, e) for n, f, e in zip(names, found, expected, strict=True)}
    del found
    free_memory()
    milliseconds = median_ms(both, repeats=repeats)
    flops = 2 * _MATMULS_IN_HEAD * hidden_ND.numel() * len(weight_VD)
    return {"ms": milliseconds, "tflops": tera_per_second(flops, milliseconds), "peak_gb": peak_gb(), **errors}
