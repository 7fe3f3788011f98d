"""The flash kernel as torch has it: one call, forward and backward."""

from typing import Any

import pytest
import torch
from torch import Tensor

from toolkit.core.types import AttentionKind
from toolkit.model.kernels import flash as module
from toolkit.model.kernels.flash import flash_kernel, suits_flash, torch_flash

KEY_BOUNDS = torch.tensor([0, 5, 6, 12, 12], dtype=torch.int32)
QUERY_BOUNDS = torch.tensor([0, 2, 2, 7, 7], dtype=torch.int32)


def _inputs(num_queries: int, heads: int, key_value_heads: int, **options: Any) -> list[Tensor]:
    torch.manual_seed(4)
    shapes = [(num_queries, heads), (12, key_value_heads), (12, key_value_heads)]
    return [torch.randn(*shape, 8, **options) for shape in shapes]


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
    monkeypatch.setattr(module, "capability", lambda device: capability)
    assert suits_flash(torch.device("cuda", 0), dtype, width) == suits


@pytest.mark.parametrize(("kind", "num_causal"), [(AttentionKind.CAUSAL, 1), (AttentionKind.BIDIRECTIONAL, 0)])
def test_torchs_operator_is_told_the_kind(
    kind: AttentionKind, num_causal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways at once, since kernels that take its place read one or the other."""
    called: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def record(*args: Any, **options: Any) -> tuple[Tensor, None]:
        called.append((args, options))
        return args[0], None

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", record)
    inputs = _inputs(12, 6, 2)
    for window, reach in ((None, -1), (64, 64)):
        torch_flash(*inputs, KEY_BOUNDS, KEY_BOUNDS, 6, 7, kind, window)
        args, options = called.pop()
        assert args[5:] == (6, 7, 0.0, bool(num_causal))
        assert (options["window_size_left"], options["window_size_right"]) == (reach, 0 if num_causal else reach)


def test_a_torch_without_the_operator_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_built, kernel in ((True, torch_flash), (False, None)):
        monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda is_built=is_built: is_built)
        assert flash_kernel() is kernel


@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize(
    ("kind", "num_queries", "query_bounds"),
    [
        (AttentionKind.CAUSAL, 12, KEY_BOUNDS),
        (AttentionKind.BIDIRECTIONAL, 12, KEY_BOUNDS),
        (AttentionKind.BIDIRECTIONAL, 7, QUERY_BOUNDS),
    ],
)
def test_the_installed_torch_takes_the_call(
    kind: AttentionKind, num_queries: int, query_bounds: Tensor, heads: tuple[int, int]
) -> None:
    """Shapes of the real operator, forward and backward, which need no GPU."""
    inputs = _inputs(num_queries, *heads, dtype=torch.bfloat16, device="meta", requires_grad=True)
    output = torch_flash(*inputs, query_bounds.to("meta"), KEY_BOUNDS.to("meta"), 2048, 2048, kind)
    assert (output.shape, output.dtype) == (inputs[0].shape, torch.bfloat16)
    output.sum().backward()  # type: ignore[no-untyped-call]
    assert all(part.grad is not None and part.grad.shape == part.shape for part in inputs)
