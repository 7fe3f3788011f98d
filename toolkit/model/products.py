"""Products with weights, by the faster of torch's two libraries.

In fp32, torch multiplies through MKL, which on AMD's processors reaches half the speed of oneDNN; torch takes oneDNN
for tensors in its layout (`Tensor.to_mkldnn`). Both accumulate in fp32 and differ by rounding. bf16 products go
through oneDNN anyway.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

_CPU_INFO = Path("/proc/cpuinfo")


class Linear(nn.Linear):
    """`nn.Linear` by `times_transposed`."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return times_transposed(input, self.weight, self.bias)


def times_transposed(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """`left @ right.T` of two matrices, plus a bias for each row of `right`; differentiable."""
    if left.dtype == torch.float32 and left.device.type == "cpu" and not _is_compiling() and _has_slow_mkl():
        product: Tensor = linear(left.to_mkldnn(), right, bias).to_dense()
        return product
    return linear(left, right, bias)


def _is_compiling() -> bool:
    # Compiled code has no such layout.
    return torch.compiler.is_compiling()


@cache
def _has_slow_mkl() -> bool:
    """Whether this is an AMD processor and torch has both libraries. A fact, not a timing: equal runs stay equal."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    return _CPU_INFO.is_file() and "AuthenticAMD" in _CPU_INFO.read_text(encoding="utf-8")
