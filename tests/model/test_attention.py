"""Every kernel against the dense definition, both kinds, several segments, padding, shared heads."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.support.kernels import dense_attention, plain_flash
from toolkit.core.types import AttentionKind
from toolkit.model import attention as module
from toolkit.model.attention import MixedAttention, SegmentAttention, attend, attend_by_flash
from toolkit.model.kernels import plain_attention, window_attention
from toolkit.model.kernels.flash import suits_flash
from toolkit.model.kernels.plain_attention import attend_by_bmm, attend_by_sdpa
from toolkit.model.kernels.window_attention import (
    attend_bands_by_sdpa,
    attend_in_bands,
    bands_are_cheaper,
    multiply_bands,
)
from toolkit.model.segments import SegmentLayout
from toolkit.testing.models import dense_visibility
from toolkit.testing.tolerances import tolerance


def _by_products(*inputs: Any, window: int | None = None) -> Tensor:
    return attend_by_bmm(*inputs, window)


def _by_bands(*inputs: Any, window: int | None = None) -> Tensor:
    return _by_products(*inputs) if window is None else attend_in_bands(*inputs, window, products=multiply_bands)


def _by_sdpa(*inputs: Any, window: int | None = None) -> Tensor:
    return (
        attend_by_sdpa(*inputs) if window is None else attend_in_bands(*inputs, window, products=attend_bands_by_sdpa)
    )


def _by_flash(*inputs: Any, window: int | None = None) -> Tensor:
    return attend_by_flash(*inputs, window, kernel=plain_flash)


def _by_choice(*inputs: Any, window: int | None = None) -> Tensor:
    return attend(*inputs, window)


KERNELS = [_by_products, _by_bands, _by_sdpa, _by_flash, _by_choice]
Kernel = Callable[..., Tensor]


def _segments(*rows: list[int]) -> Tensor:
    """Rows as lists of lengths, positive: a segment, negative: padding."""
    built = []
    for row in rows:
        segment, ids = 0, []
        for length in row:
            segment += length > 0
            ids += [segment if length > 0 else 0] * abs(length)
        built.append(ids)
    return torch.tensor(built)


LAYOUTS = {
    "blocks": _segments([12], [12]),
    "two cuts": _segments([5, 7], [3, 9]),
    "equal neighbours": _segments([4, 4, 4], [6, 6]),
    "short ones, padding at the end": _segments([1, 2, 3, -6], [1, 11]),
    "padding inside and a row of padding": _segments([2, -3, 4, -3], [-12], [12]),
}


def _inputs(segments_BS: Tensor, num_heads: int, num_key_value_heads: int, *, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (segments_BS.numel(), 8)
    return [
        torch.randn(shape[0], heads, shape[1], generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for heads in (num_heads, num_key_value_heads, num_key_value_heads)
    ]


def _assert_equal(output: Tensor, ours: list[Tensor], expected: Tensor, theirs: list[Tensor]) -> None:
    """The outputs and the gradients of what they were made from."""
    limits = tolerance(output.dtype)
    torch.testing.assert_close(output, expected, **limits)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    (output * weights.to(output.dtype)).sum().backward()
    (expected * weights.to(output.dtype)).sum().backward()
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.grad, their.grad.nan_to_num(), **limits)


@pytest.mark.parametrize(
    ("window", "heads", "dtype"),
    [
        *product([None], [(4, 4), (4, 2), (3, 1)], [torch.float64, torch.float32]),
        *product([0, 1, 3, 5, 10, 11, 12], [(4, 2)], [torch.float64]),
    ],
)
@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_equal_the_definition(
    kernel: Kernel, name: str, kind: AttentionKind, window: int | None, heads: tuple[int, int], dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Windows shorter than a band of queries, as long and longer; shorter than a segment, as long and longer."""
    monkeypatch.setattr(window_attention, "_SHORTEST_BAND", 4)
    monkeypatch.setattr(plain_attention, "CHUNK", 5 if window is None else 4)
    segments_BS = LAYOUTS[name]
    ours, theirs = (_inputs(segments_BS, *heads, dtype=dtype) for _ in range(2))
    output = kernel(*ours, kind, SegmentLayout.from_segments(segments_BS), window=window)
    _assert_equal(output, ours, dense_attention(*theirs, kind, segments_BS, window), theirs)


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_of_both_kinds_equal_the_definition_of_each(name: str) -> None:
    """The layout's rows as causal ones, and then the same as bidirectional ones."""
    segments_BS = LAYOUTS[name]
    layout = SegmentLayout.from_segments(segments_BS)
    ours, theirs = (_inputs(segments_BS.repeat(2, 1), 4, 2, dtype=torch.float64) for _ in range(2))
    output = MixedAttention(*(SegmentAttention(kind, layout) for kind in AttentionKind))(*ours, None)
    parts = [torch.split(part, segments_BS.numel()) for part in theirs]
    expected = torch.cat(
        [
            dense_attention(*(part[number] for part in parts), kind, segments_BS)
            for number, kind in enumerate((AttentionKind.CAUSAL, AttentionKind.BIDIRECTIONAL))
        ]
    )
    _assert_equal(output, ours, expected, theirs)


@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("kernel", KERNELS)
def test_bf16_is_close_to_fp64(kernel: Kernel, kind: AttentionKind) -> None:
    segments_BS = LAYOUTS["two cuts"]
    inputs = _inputs(segments_BS, 4, 2, dtype=torch.bfloat16)
    output = kernel(*inputs, kind, SegmentLayout.from_segments(segments_BS))
    expected = dense_attention(*(part.double() for part in inputs), kind, segments_BS)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), expected, **tolerance(torch.bfloat16))


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_leaks(
    kernel: Kernel,
    kind: AttentionKind,
    heads: tuple[int, int],
    window: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Changing one position changes exactly the outputs that may see it, bit for bit; at the window's edges too."""
    monkeypatch.setattr(window_attention, "_SHORTEST_BAND", 3)
    monkeypatch.setattr(plain_attention, "CHUNK", 3)
    segments_BS = _segments([3, 4, -2, 5, -1], [8, 7])
    layout = SegmentLayout.from_segments(segments_BS)
    visible = torch.block_diag(*dense_visibility(segments_BS, kind, window))
    with torch.no_grad():
        inputs = _inputs(segments_BS, *heads, dtype=torch.float32)
        before = kernel(*inputs, kind, layout, window=window)
        for position in range(segments_BS.numel()):
            changed = [part.detach().clone() for part in inputs]
            for part in changed[1:]:
                part[position] += 1.0
            is_changed = (kernel(*changed, kind, layout, window=window) != before).any(-1).any(-1)
            assert torch.equal(is_changed, visible[:, position] != 0), f"position {position}"


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("kernel", KERNELS)
def test_padding_gives_zero_even_where_it_is_not_a_number(
    kernel: Kernel, kind: AttentionKind, window: int | None
) -> None:
    segments_BS = _segments([3, 5, -4], [-12])
    is_padding = segments_BS.flatten() == 0
    inputs = _inputs(segments_BS, 4, 2, dtype=torch.float32)
    with torch.no_grad():
        for part in inputs:
            part[is_padding] = float("nan")
    output = kernel(*inputs, kind, SegmentLayout.from_segments(segments_BS), window=window)
    output.sum().backward()
    assert not output[is_padding].any()
    assert output[~is_padding].isfinite().all()
    for part in inputs:
        assert not part.grad[is_padding].any()
        assert part.grad.isfinite().all()


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("kind", AttentionKind)
def test_who_sees_far_takes_torchs_attention_and_agrees(
    kind: AttentionKind, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments_BS = LAYOUTS["two cuts"]
    layout = SegmentLayout.from_segments(segments_BS)
    inputs = _inputs(segments_BS, 4, 2, dtype=torch.float64)
    near = attend(*inputs, kind, layout, window)
    monkeypatch.setattr(module, "LONGEST_FOR_BMM", 8)
    for name in ("attend_by_bmm", "multiply_bands"):
        monkeypatch.setattr(module, name, None)
    torch.testing.assert_close(attend(*inputs, kind, layout, window), near, **tolerance(torch.float64))


@pytest.mark.parametrize(
    ("lengths", "window", "dtype", "expected"),
    [
        ([512] * 8, 64, torch.bfloat16, True),
        ([512] * 8, 64, torch.float32, False),
        ([20, 30] * 50, 64, torch.bfloat16, True),
        # A window that hides nothing of all segments but one.
        ([700, *[100] * 30], 256, torch.bfloat16, False),
    ],
)
def test_bands_where_they_are_cheaper(lengths: list[int], window: int, dtype: torch.dtype, expected: bool) -> None:
    layout = SegmentLayout.from_segments(_segments(lengths))
    query = torch.empty(sum(lengths), 4, 64, dtype=dtype)
    assert bands_are_cheaper(query, AttentionKind.BIDIRECTIONAL, layout, window) is expected


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("kind", AttentionKind)
def test_torchs_attention_keeps_no_probabilities(kind: AttentionKind, window: int | None) -> None:
    """It takes its plain way, which keeps them, for a mask of three dimensions; here that way is closed."""
    segments_BS = LAYOUTS["two cuts"]
    inputs = _inputs(segments_BS, 4, 2, dtype=torch.float32)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        _by_sdpa(*inputs, kind, SegmentLayout.from_segments(segments_BS), window=window).sum().backward()


def test_layout_by_hand() -> None:
    layout = SegmentLayout.from_segments(torch.tensor([[1, 1, 2, 2, 3, 0], [1, 1, 1, 0, 0, 0]]))
    assert [(run.start, run.length, run.count, run.is_padding) for run in layout.spans] == [
        (0, 2, 2, False),
        (4, 1, 1, False),
        (5, 1, 1, True),
        (6, 3, 1, False),
        (9, 3, 1, True),
    ]
    assert layout.rope_positions_T.tolist() == [0, 1, 0, 1, 0, 0, 0, 1, 2, 0, 1, 2]
    assert layout.longest == 3


def test_bounds_for_kernels_on_the_device_by_hand() -> None:
    """Every stretch, padding too, then T over and over: few lengths of the list, whatever the segments are."""
    layout = SegmentLayout.from_segments(torch.tensor([[1, 1, 2, 2, 3, 0], [1, 1, 1, 0, 0, 0]]))
    assert layout.bounds_M.tolist() == [0, 2, 4, 5, 6, 9] + [12] * 58
    assert layout.is_real_T.tolist() == [True] * 5 + [False] + [True] * 3 + [False] * 3
    assert layout.row_length == 6
    many = SegmentLayout.from_segments(torch.arange(1, 65).repeat(1, 1))
    assert many.bounds_M.tolist() == list(range(64)) + [64] * 64


def test_on_a_cpu_no_flash_kernel_is_chosen() -> None:
    assert not suits_flash(torch.device("cpu"), torch.bfloat16, 64)


def test_layout_of_nothing_but_padding() -> None:
    assert SegmentLayout.from_segments(torch.zeros(2, 3, dtype=torch.int64)).longest == 0


def test_layout_from_numpy_equals_layout_from_torch() -> None:
    for segments_BS in LAYOUTS.values():
        ours, theirs = SegmentLayout.from_segments(segments_BS), SegmentLayout.from_segments(segments_BS.numpy())
        assert ours.spans == theirs.spans
        assert torch.equal(ours.rope_positions_T, theirs.rope_positions_T)
