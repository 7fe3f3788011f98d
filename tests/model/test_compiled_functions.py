"""Functions with backward passes of their own, compiled: their gradients are those of eager, in every dtype.

torch 2.11 loses the gradient, without a word, where what `forward` returns comes out of an operation in place, or out
of a cast or copy that does nothing.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import toolkit
from toolkit.engine.ranks import join_ranks
from toolkit.model.layers import apply_rope, embed, rms_norm, rope_cos_sin
from toolkit.parallel.tensor_parallel import enter_region, leave_region
from toolkit.testing.tolerances import tolerance

# Those that compiled code has, and those that run outside of every graph.
_COMPILED = {"_RMSNorm", "_Rope", "_EnterRegion", "_LeaveRegion", "_Lookup"}
_EAGER = {"_BandProducts", "_BmmAttention", "_CrossEntropySum"}
_DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def _rotated(hidden_TD: Tensor) -> Tensor:
    return apply_rope(hidden_TD.view(6, 2, 4), rope_cos_sin(torch.arange(6), 4, theta=50.0)).flatten(1)


@pytest.fixture
def group() -> dist.ProcessGroup:
    join_ranks()
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def _gradients(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of the input and of a weight before the function, which stands between two others as in a block."""
    generator = torch.Generator().manual_seed(1)
    input, weight, upstream = (torch.randn(6, 8, generator=generator).to(dtype) for _ in range(3))
    input.requires_grad_()
    weight.requires_grad_()
    output = function(input * weight)
    (output * upstream).sum().backward()  # type: ignore[no-untyped-call]
    assert input.grad is not None
    assert weight.grad is not None
    return input.grad, weight.grad


def _check(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager")
    for found, expected in zip(_gradients(compiled, dtype), _gradients(function, dtype), strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(found, expected, **tolerance(dtype))
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize(
    "function",
    [
        _rotated,
        lambda hidden_TD: rms_norm(hidden_TD, torch.ones(8, dtype=hidden_TD.dtype), eps=1e-5),
        lambda hidden_TD: embed(torch.tensor([0, 2, 2, 5, 1, 0]), hidden_TD),
    ],
    ids=["rotation", "norm", "lookup"],
)
def test_a_compiled_function_has_its_gradient(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    _check(function, dtype)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("region", [enter_region, leave_region])
def test_a_compiled_exchange_has_its_gradient(
    region: Callable[[Tensor, dist.ProcessGroup], Tensor], dtype: torch.dtype, group: dist.ProcessGroup
) -> None:
    _check(partial(_in_region, region, group), dtype)


def _in_region(
    region: Callable[[Tensor, dist.ProcessGroup], Tensor], group: dist.ProcessGroup, hidden_TD: Tensor
) -> Tensor:
    return region(hidden_TD.sin(), group)


def test_each_function_is_looked_at_here() -> None:
    """A new one is tested above, or said to run outside of every graph."""
    sources = Path(toolkit.__file__).parent.rglob("*.py")
    found = {
        name for path in sources for name in re.findall(r"class (\w+)\(torch\.autograd\.Function\)", path.read_text())
    }
    assert found == _COMPILED | _EAGER
