"""Flash kernels as this installation and others have them: the same call, whatever the signature."""

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from tests.support.kernels import plain_varlen
from toolkit.core.types import AttentionKind
from toolkit.model import varlen as module
from toolkit.model.varlen import suits_varlen, varlen_kernel

BOUNDS = torch.tensor([0, 5, 6, 12, 12], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _looked_up_anew() -> Iterator[None]:
    varlen_kernel.cache_clear()
    yield
    varlen_kernel.cache_clear()


def _inputs(heads: int, key_value_heads: int, **options: Any) -> list[Tensor]:
    torch.manual_seed(4)
    return [torch.randn(12, count, 8, **options) for count in (heads, key_value_heads, key_value_heads)]


def _kind(window_size: tuple[int, int]) -> AttentionKind:
    return {(-1, 0): AttentionKind.CAUSAL, (-1, -1): AttentionKind.BIDIRECTIONAL}[window_size]


def _torch_2_11(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:  # fmt: skip
    """As torch has it before `enable_gqa`: equally many heads."""
    assert query.shape == key.shape
    assert (max_q, cu_seq_q is cu_seq_k) == (max_k, True)
    return plain_varlen(query, key, value, cu_seq_q, max_q, _kind(window_size))


def _torch_2_12(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *,
    window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """As torch has it since: key and value heads are shared only if that is said."""
    assert enable_gqa or query.shape == key.shape
    return plain_varlen(query, key, value, cu_seq_q, max_q, _kind(window_size))


def _torch_2_10(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
    is_causal: bool = False,
) -> Tensor:  # fmt: skip
    raise AssertionError("too old to be called")


@pytest.mark.parametrize(
    ("capability", "width", "dtype", "suits"),
    [
        ((9, 0), 64, torch.bfloat16, True),
        ((8, 0), 256, torch.float16, True),
        ((7, 5), 64, torch.bfloat16, False),
        ((9, 0), 264, torch.bfloat16, False),
        ((9, 0), 60, torch.bfloat16, False),
        ((9, 0), 64, torch.float32, False),
    ],
)
def test_what_a_device_cannot_do_is_not_asked_of_it(
    capability: tuple[int, int], width: int, dtype: torch.dtype, suits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_capability", lambda device: capability)
    query: Any = SimpleNamespace(is_cuda=True, dtype=dtype, shape=(12, 4, width), device=torch.device("cuda", 0))
    assert suits_varlen(query) == suits


@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("installed", [_torch_2_11, _torch_2_12])
def test_torchs_kernel_is_called_as_its_version_wants_it(
    installed: Callable[..., Tensor], kind: AttentionKind, heads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", installed)
    ours, theirs = (_inputs(*heads, requires_grad=True) for _ in range(2))
    kernel = varlen_kernel()
    assert kernel is not None
    mixed, expected = kernel(*ours, BOUNDS, 12, kind), plain_varlen(*theirs, BOUNDS, 12, kind)
    torch.testing.assert_close(mixed, expected)
    mixed.square().sum().backward()  # type: ignore[no-untyped-call]
    expected.square().sum().backward()  # type: ignore[no-untyped-call]
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.grad, their.grad)


def test_the_flash_attn_package_takes_over_where_torch_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", _torch_2_10)
    assert varlen_kernel() is None
    varlen_kernel.cache_clear()
    called = SimpleNamespace(
        flash_attn_varlen_func=lambda query, key, value, bounds, _, longest, __, causal: plain_varlen(
            query, key, value, bounds, longest, AttentionKind.CAUSAL if causal else AttentionKind.BIDIRECTIONAL
        )
    )
    monkeypatch.setitem(sys.modules, "flash_attn", called)
    kernel = varlen_kernel()
    assert kernel is not None
    for kind in AttentionKind:
        inputs = _inputs(6, 2)
        torch.testing.assert_close(kernel(*inputs, BOUNDS, 12, kind), plain_varlen(*inputs, BOUNDS, 12, kind))


@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("kind", AttentionKind)
def test_the_installed_torch_takes_the_call(kind: AttentionKind, heads: tuple[int, int]) -> None:
    """Shapes of the real operator, forward and backward, which need no GPU."""
    inputs = _inputs(*heads, dtype=torch.bfloat16, device="meta", requires_grad=True)
    kernel = varlen_kernel()
    assert kernel is not None
    mixed = kernel(*inputs, BOUNDS.to("meta"), 2048, kind)
    assert (mixed.shape, mixed.dtype) == (inputs[0].shape, torch.bfloat16)
    mixed.sum().backward()  # type: ignore[no-untyped-call]
    assert all(part.grad is not None and part.grad.shape == part.shape for part in inputs)
