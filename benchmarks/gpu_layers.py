"""Head, pointwise layers and optimizer for `benchmarks/gpu.py`: milliseconds, bytes a second, memory, errors."""

from collections.abc import Callable, Iterator
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
from torch.nn.functional import silu

from toolkit.model import parameter_counts
from toolkit.model.kernels.cross_entropy import cross_entropy_sum
from toolkit.model.kernels.cross_entropy_forms import EAGER, Compiled, CrossEntropyForm
from toolkit.model.layers import apply_rope, rms_norm, rope_cos_sin

_BF16 = 2
# Parameter, gradient and two moments are read, all but the gradient written, in fp32.
_ADAMW_BYTES = 28
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


def measure_pointwise(job: Job) -> Rows:
    """Norm, rotation and SwiGLU of each preset, eager and compiled: ms, and the bytes they must move over the time."""
    num_rows = job.scale.positions
    for preset, settings in job.scale.kernel_models.items():
        width, inner, heads = settings.hidden_size, settings.intermediate_size, settings.num_attention_heads
        positions_T = torch.arange(num_rows, device=device()) % job.scale.row_length
        rope = rope_cos_sin(positions_T, settings.head_size, theta=settings.rope_theta)
        layers: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
            "norm": (partial(rms_norm, eps=1e-5), ((num_rows, width), (width,))),
            "rotation": (partial(_rotated, rope), ((num_rows, heads, settings.head_size),)),
            "SwiGLU": (lambda gate, up: silu(gate) * up, ((num_rows, inner), (num_rows, inner))),
        }
        for name, (function, shapes) in layers.items():
            for mode, form in _forms(function, job.scale.compile_backend):
                row = {"what": "pointwise", "preset": preset, "layer": name, "form": mode}
                yield attempt(row, partial(_measure_layer, form, shapes, repeats=job.scale.repeats))


def _rotated(rope: tuple[Tensor, Tensor], heads_THE: Tensor) -> Tensor:
    return apply_rope(heads_THE, rope)


def _forms(function: Callable[..., Tensor], backend: str) -> Iterator[tuple[str, Callable[..., Tensor]]]:
    yield "eager", function
    # One code for all layers, which Dynamo would compile eight times and no more.
    torch._dynamo.reset()
    yield "compiled", torch.compile(lambda *inputs: function(*inputs), backend=backend, dynamic=False)


def _measure_layer(function: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...], *, repeats: int) -> Row:
    inputs = [random(*shape).requires_grad_() for shape in shapes]
    output = function(*inputs)
    d_output = random(*output.shape)
    forward = median_ms(lambda: function(*inputs), repeats=repeats)
    backward = median_ms(lambda: torch.autograd.grad(output, inputs, d_output, retain_graph=True), repeats=repeats)
    # Forward reads the inputs and writes the output; backward reads both kinds, and writes a gradient for each input.
    read, written = _BF16 * sum(part.numel() for part in inputs), _BF16 * output.numel()
    return {
        "forward_ms": forward,
        "forward_tb_per_second": tera_per_second(read + written, forward),
        "backward_ms": backward,
        "backward_tb_per_second": tera_per_second(2 * read + written, backward),
    }


def measure_optimizer(job: Job) -> Rows:
    """One update of torch's fused AdamW over as many fp32 parameters as each preset has."""
    for preset, settings in job.scale.kernel_models.items():
        count = parameter_counts(settings).total
        row = {"what": "optimizer", "preset": preset, "parameters": count}
        yield attempt(row, partial(_measure_adamw, count, repeats=job.scale.repeats))


def _measure_adamw(count: int, *, repeats: int) -> Row:
    parameter = torch.nn.Parameter(torch.randn(count, device=device()))
    parameter.grad = torch.randn_like(parameter)
    adamw = torch.optim.AdamW([parameter], lr=1e-4, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1, fused=True)
    milliseconds = median_ms(adamw.step, repeats=repeats)
    return {"ms": milliseconds, "tb_per_second": tera_per_second(_ADAMW_BYTES * count, milliseconds)}
