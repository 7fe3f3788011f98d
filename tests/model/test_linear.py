"""Both libraries give the same products and gradients."""

import pytest
import torch

from toolkit.model import layers
from toolkit.model.layers import Linear, linear
from toolkit.testing.tolerances import tolerance


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 37])
def test_libraries_agree(num_rows: int, is_transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (16, num_rows) if is_transposed else (num_rows, 16)
    upstream, results = torch.randn(num_rows, 24, generator=generator), []
    left = torch.randn(shape, generator=generator).requires_grad_()
    right = torch.randn(24, 16, generator=generator).requires_grad_()
    for has_slow_mkl in (False, True):
        monkeypatch.setattr(layers, "_has_slow_mkl", lambda answer=has_slow_mkl: answer)
        product = linear(left.T if is_transposed else left, right)
        results.append((product, *torch.autograd.grad(product, (left, right), upstream)))
    for plain, other in zip(*results, strict=True):
        torch.testing.assert_close(other, plain, **tolerance(torch.float32))
    expected = (left.T if is_transposed else left).double() @ right.double().T
    torch.testing.assert_close(results[1][0].double(), expected, **tolerance(torch.float32))


def test_other_dtypes_take_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_has_slow_mkl", lambda: True)
    for dtype in (torch.float64, torch.bfloat16):
        left, right = torch.eye(3, dtype=dtype), torch.arange(6, dtype=dtype).view(2, 3)
        assert torch.equal(linear(left, right), right.T)


def test_linear_is_named_as_torchs() -> None:
    layer = Linear(3, 2)
    assert {name: tuple(value.shape) for name, value in layer.state_dict().items()} == {"weight": (2, 3)}
