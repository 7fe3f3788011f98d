"""Blocks that compute again in the backward pass: the same bits, and fewer bytes in between."""

from functools import partial
from typing import get_args

import pytest
import torch

from tests.support.memory import allocated_by
from toolkit.core.types import AttentionKind
from toolkit.model import Encoder
from toolkit.model.activation_checkpointing import checkpoint_blocks_
from toolkit.model.compiled_blocks import compile_blocks_
from toolkit.model.config import ActivationCheckpointing
from toolkit.model.segments import SegmentLayout
from toolkit.testing.models import MODEL_OPTIONS, tiny_encoder

_MODES = get_args(ActivationCheckpointing)
_WIDE = {"num_hidden_layers": 4, "intermediate_size": 256}


def _loss(encoder: Encoder, kind: AttentionKind) -> torch.Tensor:
    """Of 4 rows of 128: two segments, and padding in one row; a third of the positions are targets."""
    ids_BS = torch.randint(0, 97, (4, 128), generator=torch.Generator().manual_seed(0))
    segments_BS = torch.ones_like(ids_BS)
    segments_BS[:, 60:] = 2
    segments_BS[0, 100:] = 0
    positions_N = torch.arange(0, 512, 3)
    layout = SegmentLayout.from_segments(segments_BS)
    return encoder(ids_BS, layout, kind, positions_N=positions_N, labels_N=ids_BS.flatten()[positions_N], scale=0.5)


def _results(encoder: Encoder) -> list[torch.Tensor]:
    """Loss and gradients of both kinds."""
    results = []
    for kind in AttentionKind:
        encoder.zero_grad()
        loss = _loss(encoder, kind)
        loss.backward()
        results += [loss.detach(), *(parameter.grad.clone() for parameter in encoder.parameters())]
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, *MODEL_OPTIONS.values()], ids=["plain", *MODEL_OPTIONS])
@pytest.mark.parametrize("mode", ["selective", "full"])
def test_loss_and_gradients_are_equal_to_the_last_bit(mode, options, dtype):
    plain, checkpointed = (tiny_encoder(seed=1, dtype=dtype, **options) for _ in range(2))
    checkpoint_blocks_(checkpointed.model.layers, mode)
    assert [name for name, _ in checkpointed.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert list(checkpointed.state_dict()) == list(plain.state_dict())
    for ours, theirs in zip(_results(checkpointed), _results(plain), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bytes_that_wait_for_the_backward_pass(dtype):
    """Of 4 blocks of width 64 and 256, by hand, for each of the 512 positions of a block but the last.

    full: the block's input, 64 numbers. selective: also results of products, 64 + 2 x 32 + 64 of attention and
    2 x 256 + 64 of the feed-forward: 768 more. none: norms, the activation and attention's probabilities too.
    """
    kept = {}
    for mode in _MODES:
        encoder = tiny_encoder(seed=1, dtype=dtype, **_WIDE)
        checkpoint_blocks_(encoder.model.layers, mode)
        kept[mode] = allocated_by(lambda encoder=encoder: _loss(encoder, AttentionKind.BIDIRECTIONAL)).kept
    # The last block's feed-forward has 171 positions; some kB are the head's gradients, angles and bounds.
    positions_of_attention, positions_of_feed_forward = 4 * 512, 3 * 512 + 171
    selective = (positions_of_attention * 192 + positions_of_feed_forward * 576) * dtype.itemsize
    assert kept["selective"] - kept["full"] == pytest.approx(selective, rel=0.02)
    assert kept["full"] < 0.2 * kept["selective"] < 0.2 * 0.6 * kept["none"]


def test_peak_of_a_step_goes_down():
    peaks = []
    for mode in _MODES:
        encoder = tiny_encoder(seed=1, num_hidden_layers=8, intermediate_size=256)
        checkpoint_blocks_(encoder.model.layers, mode)
        peaks.append(allocated_by(lambda encoder=encoder: _loss(encoder, AttentionKind.CAUSAL).backward()).peak)
    none, selective, full = peaks
    assert full < 0.7 * selective < 0.7 * 0.8 * none


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "share"), [("selective", 0.85), ("full", 0.1)])
def test_compiled_blocks_stay_compiled(mode, share, monkeypatch):
    """Graphs are those without checkpointing, and the numbers too."""
    torch._dynamo.reset()
    # The partition into forward and backward is that of every backend; this one generates no code.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager_decomp_partition"))
    results, graphs, kept = [], [], []
    for chosen in ("none", mode):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        encoder = tiny_encoder(seed=1, **_WIDE)
        compile_blocks_(encoder)
        checkpoint_blocks_(encoder.model.layers, chosen)
        results.append(_results(encoder))
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        kept.append(allocated_by(lambda encoder=encoder: _loss(encoder, AttentionKind.CAUSAL)).kept)
    torch._dynamo.reset()
    assert graphs[0] == graphs[1] >= 4
    assert kept[1] < share * kept[0]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
