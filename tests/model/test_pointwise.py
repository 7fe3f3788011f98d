"""The hand-written backward passes against autograd's of the plain formulas."""

import pytest
import torch
from torch import Tensor

from toolkit.model.layers import LayerNorm, apply_rope, rms_norm, rope_cos_sin
from toolkit.testing.tolerances import tolerance


def _random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_norm_is_the_formula(dtype: torch.dtype) -> None:
    hidden, weight, upstream = (
        _random(7, 6, seed=0, dtype=dtype),
        _random(6, seed=1, dtype=dtype),
        _random(7, 6, seed=2),
    )
    expected = weight * hidden / (hidden.square().mean(-1, keepdim=True) + 0.3).sqrt()
    found = rms_norm(hidden, weight, eps=0.3)
    torch.testing.assert_close(found, expected, **tolerance(dtype))
    upstream = upstream.to(dtype)
    for ours, theirs in zip(
        torch.autograd.grad(found, (hidden, weight), upstream),
        torch.autograd.grad(expected, (hidden, weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, **tolerance(dtype))


def test_norm_of_bf16_is_computed_in_fp32() -> None:
    """256 + 1 has no bf16 of its own: a mean of squares taken in bf16 would lose it."""
    hidden = torch.tensor([[16.0] + [1.0] * 31], dtype=torch.bfloat16)
    found = rms_norm(hidden, torch.ones(32, dtype=torch.bfloat16), eps=0.0)
    exact = hidden.double() / ((256 + 31) / 32) ** 0.5
    assert torch.equal(found, exact.to(torch.bfloat16))


def test_norm_of_bf16_is_rounded_once() -> None:
    hidden = _random(40, 48, seed=6, dtype=torch.bfloat16).detach()
    exact = hidden.double() / (hidden.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    found = rms_norm(hidden, torch.ones(48, dtype=torch.bfloat16), eps=1e-5)
    # The odd number lies so near the middle between two of bf16 that fp32 falls on the other side.
    assert (found != exact.to(torch.bfloat16)).double().mean() < 0.01


def test_a_layer_norm_of_bf16_sums_its_gradient_in_fp32() -> None:
    """4,096 positions, added up one by one in bf16, would be wrong by 4 %."""
    hidden, upstream = (_random(4096, 64, seed=seed, dtype=torch.bfloat16).detach() for seed in (7, 8))
    gradients = []
    for dtype in (torch.bfloat16, torch.float32):
        norm = LayerNorm(64, 1e-5).to(dtype)
        norm(hidden.to(dtype)).backward(upstream.to(dtype) + 0.25)
        gradients.append(norm.weight.grad.float())
    assert (gradients[0] - gradients[1]).norm() < 4e-3 * gradients[1].norm()


def test_norm_of_zero_is_zero_with_a_finite_gradient() -> None:
    hidden = torch.zeros(2, 4, requires_grad=True)
    rms_norm(hidden, torch.ones(4), eps=1e-5).sum().backward()
    assert hidden.grad.isfinite().all()


def test_rotation_turns_the_halves_and_its_gradient_turns_back() -> None:
    """Number i goes with number i + E/2, at the angle position / theta^(2 i / E)."""
    tensor, upstream = _random(5, 3, 8, seed=3), _random(5, 3, 8, seed=4)
    positions = torch.arange(5)
    rates = 1 / 50.0 ** (torch.arange(0, 8, 2) / 8)
    turns = torch.polar(torch.ones(5, 4, dtype=torch.float64), (positions[:, None] * rates).double())[:, None]
    as_complex = torch.complex(tensor[..., :4], tensor[..., 4:]) * turns
    expected = torch.cat((as_complex.real, as_complex.imag), dim=-1)
    found = apply_rope(tensor, rope_cos_sin(positions, 8, theta=50.0))
    # The angles are fp32 by design.
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    (ours,) = torch.autograd.grad(found, tensor, upstream)
    (theirs,) = torch.autograd.grad(expected, tensor, upstream)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_bf16_is_rotated_in_fp32_and_rounded_once() -> None:
    tensor = _random(4, 2, 8, seed=5, dtype=torch.bfloat16).detach()
    angles = rope_cos_sin(torch.tensor([0, 1, 900, 2047]), 8, theta=10_000.0)
    assert {part.dtype for part in angles} == {torch.float32}
    assert torch.equal(apply_rope(tensor, angles), apply_rope(tensor.float(), angles).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_of_a_rotation_is_the_rotation_back_in_every_dtype(dtype: torch.dtype) -> None:
    tensor, upstream = _random(5, 3, 8, seed=9, dtype=dtype), _random(5, 3, 8, seed=10, dtype=dtype).detach()
    cos, sin = rope_cos_sin(torch.arange(5), 8, theta=50.0)
    (found,) = torch.autograd.grad(apply_rope(tensor, (cos, sin)), tensor, upstream)
    torch.testing.assert_close(found, apply_rope(upstream, (cos, -sin)), **tolerance(dtype))
