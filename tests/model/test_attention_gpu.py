"""Attention and the whole model on a CUDA device: leaks, parity with the CPU's definition, and no waiting."""

from itertools import product

import pytest
import torch

from tests.support.kernels import dense_attention
from toolkit.core.types import AttentionKind
from toolkit.model.attention import attend, attend_by_flash
from toolkit.model.kernels.choice import Kernels
from toolkit.model.kernels.flash import flash_kernel, suits_flash
from toolkit.model.layers import separate_products
from toolkit.model.segments import SegmentLayout
from toolkit.testing.models import dense_visibility, tiny_encoder
from toolkit.testing.tolerances import tolerance

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SEGMENTS = torch.tensor([[1] * 70 + [2] * 50 + [0] * 8, [1] * 128, [1] * 3 + [2] * 4 + [3] * 121])
_HEADS = [(4, 4), (6, 2)]


def _inputs(heads: tuple[int, int], dtype: torch.dtype, *, width: int = 64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    counts = (heads[0], heads[1], heads[1])
    return [torch.randn(SEGMENTS.numel(), count, width, generator=generator).to(dtype) for count in counts]


@pytest.mark.parametrize("width", [64, 96])
@pytest.mark.parametrize("heads", _HEADS)
@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("window", [None, 9])
def test_values_and_gradients_equal_the_definition(kind, heads, dtype, width, window):
    """bf16 and fp16 take flash attention, fp32 torch's attention per segment; compared in fp64 on the CPU."""
    inputs = _inputs(heads, dtype, width=width)
    ours = [part.cuda().requires_grad_() for part in inputs]
    theirs = [part.double().requires_grad_() for part in inputs]
    assert (suits_flash(ours[0].device, dtype, width) and flash_kernel() is not None) == (dtype is not torch.float32)
    output = attend(*ours, kind, SegmentLayout.from_segments(SEGMENTS, device="cuda"), window)
    expected = dense_attention(*theirs, kind, SEGMENTS, window)
    # A GPU's kernel for fp32 makes a product of three in TF32, which leaves a bit or two less than fp32.
    limits = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else tolerance(torch.bfloat16)
    torch.testing.assert_close(output.cpu().double(), expected, **limits)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(5))
    (output * weights.to(dtype).cuda()).sum().backward()
    (expected * weights.to(dtype).double()).sum().backward()
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.grad.cpu().double(), their.grad.nan_to_num(), **limits)


@pytest.mark.parametrize("width", [64, 96])
@pytest.mark.parametrize("heads", _HEADS)
@pytest.mark.parametrize("repeats", [0, 100])
def test_fewer_queries_than_keys_equal_the_definition(heads, width, repeats):
    """Some segments have no query, whose keys and values get gradients of 0; some queries are at one position."""
    kernel = flash_kernel()
    assert kernel is not None
    is_target = (torch.arange(SEGMENTS.numel()) % 3 == 0) & (SEGMENTS.flatten() > 0)
    is_target[70:120] = is_target[259:263] = False
    last = torch.full((repeats,), SEGMENTS.numel() - 1)
    positions = torch.cat([torch.nonzero(is_target)[:, 0], last])
    layout = SegmentLayout.from_segments(SEGMENTS, device="cuda", positions_N=positions.numpy(), most_repeats=len(last))
    inputs = _inputs(heads, torch.bfloat16, width=width)
    ours = [part.cuda().requires_grad_() for part in inputs]
    theirs = [part.double().requires_grad_() for part in inputs]
    where = positions.cuda()
    output = attend_by_flash(
        ours[0][where], *ours[1:], AttentionKind.BIDIRECTIONAL, layout, kernel=kernel, positions_N=where
    )
    expected = dense_attention(*theirs, AttentionKind.BIDIRECTIONAL, SEGMENTS)[positions]
    torch.testing.assert_close(output.cpu().double(), expected, **tolerance(torch.bfloat16))
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(5)).bfloat16()
    # As in training, where a target that fills the list up weighs nothing.
    weights[len(positions) - repeats :] = 0
    (output * weights.cuda()).sum().backward()
    (expected * weights.double()).sum().backward()
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.grad.cpu().double(), their.grad.nan_to_num(), **tolerance(torch.bfloat16))
    for part in ours[1:]:
        assert not part.grad[70:120].any()
        assert not part.grad[259:263].any()


@pytest.mark.parametrize("heads", _HEADS)
@pytest.mark.parametrize("kind", AttentionKind)
def test_nothing_leaks(kind, heads):
    """Changing one position changes no output that may not see it, bit for bit."""
    layout = SegmentLayout.from_segments(SEGMENTS, device="cuda")
    visible = torch.block_diag(*dense_visibility(SEGMENTS, kind)).bool()
    inputs = [part.cuda() for part in _inputs(heads, torch.bfloat16)]
    before = attend(*inputs, kind, layout)
    for position in range(0, SEGMENTS.numel(), 7):
        changed = [part.clone() for part in inputs]
        for part in changed[1:]:
            part[position] += 1.0
        is_changed = (attend(*changed, kind, layout) != before).any(-1).any(-1).cpu()
        assert not (is_changed & ~visible[:, position]).any(), f"position {position}"


def test_padding_gives_zero_even_where_it_is_not_a_number():
    is_padding = SEGMENTS.flatten() == 0
    inputs = [part.cuda() for part in _inputs((4, 2), torch.bfloat16)]
    for part in inputs:
        part[is_padding.cuda()] = float("nan")
        part.requires_grad_()
    output = attend(*inputs, AttentionKind.BIDIRECTIONAL, SegmentLayout.from_segments(SEGMENTS, device="cuda"))
    output.sum().backward()
    assert not output[is_padding.cuda()].any()
    assert all(part.grad.isfinite().all() for part in inputs)


@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_model_loses_the_same_as_on_the_cpu(kind, dtype):
    encoder = tiny_encoder(seed=1, dtype=dtype)
    ids = torch.randint(3, 97, SEGMENTS.shape, generator=torch.Generator().manual_seed(2))
    positions = torch.nonzero(SEGMENTS.flatten())[::3, 0]
    arguments = {"positions_N": positions, "labels_N": ids.flatten()[positions], "scale": 1.0 / len(positions)}
    expected = encoder(ids, SEGMENTS, kind, **arguments).item()
    moved = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    layout = SegmentLayout.from_segments(SEGMENTS, device="cuda")
    found = encoder.cuda()(ids.cuda(), layout, kind, **moved).item()
    assert found == pytest.approx(expected, rel=1e-4 if dtype is torch.float32 else 2e-2)


@pytest.mark.parametrize("num_filled", [0, 100])
def test_queries_at_targets_alone_change_neither_loss_nor_gradients(num_filled):
    """In the last block, where the kernel gets fewer queries than keys, and for some segments none."""
    encoder = tiny_encoder(seed=1, dtype=torch.bfloat16).cuda()
    kernels = Kernels.choose(
        torch.device("cuda", 0), torch.bfloat16, blocks="eager", weights="whole", head_size=encoder.settings.head_size
    )
    kernels.apply_(encoder)
    ids = torch.randint(3, 97, SEGMENTS.shape, generator=torch.Generator().manual_seed(2))
    positions = torch.nonzero(SEGMENTS.flatten())[::7, 0]
    filled = torch.cat([positions, torch.full((num_filled,), SEGMENTS.numel() - 1)])
    labels = torch.cat([ids.flatten()[positions], torch.full((num_filled,), -1)])
    found = []
    for known in (None, filled.numpy()):
        layout = SegmentLayout.from_segments(SEGMENTS, device="cuda", positions_N=known, most_repeats=num_filled)
        encoder.zero_grad()
        targets = {"positions_N": filled.cuda(), "labels_N": labels.cuda(), "scale": 1.0 / len(positions)}
        loss = encoder(ids.cuda(), layout, AttentionKind.BIDIRECTIONAL, **targets)
        loss.backward()
        found.append((loss.item(), [parameter.grad.float() for parameter in encoder.parameters()]))
    assert found[1][0] == pytest.approx(found[0][0], rel=2e-3)
    for ours, theirs in zip(found[1][1], found[0][1], strict=True):
        assert (ours - theirs).norm() <= 0.03 * theirs.norm() + 1e-6


def test_no_step_of_the_model_waits_for_the_device():
    """Forward and backward with padding, an uneven number of targets, both kinds; torch raises where the host waits.

    With the flash kernel given, the last block of a bidirectional pass has queries at the targets alone.
    """
    encoder = tiny_encoder(seed=1, dtype=torch.bfloat16).cuda()
    ids, labels = torch.randint(3, 97, SEGMENTS.shape).cuda(), torch.randint(3, 97, (100,)).cuda()
    positions = torch.arange(100)
    layout = SegmentLayout.from_segments(SEGMENTS, device="cuda", positions_N=positions.numpy())
    positions = positions.cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for kernel, kind in product((None, flash_kernel()), AttentionKind):
            Kernels(kernel, separate_products, ()).apply_(encoder)
            encoder(ids, layout, kind, positions_N=positions, labels_N=labels, scale=0.01).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
