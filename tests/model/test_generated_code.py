"""Blocks with the code that the compiler generates on this machine."""

import pytest
import torch

from toolkit.core.types import AttentionKind
from toolkit.model.compiled_blocks import compile_blocks_
from toolkit.model.segments import SegmentLayout
from toolkit.testing.models import tiny_encoder


@pytest.mark.slow
def test_compiled_blocks_give_the_same_losses() -> None:
    """Both kinds, several target counts, several layouts; kinds and layouts share their graphs."""
    compiled, plain = tiny_encoder(seed=2), tiny_encoder(seed=2)
    compile_blocks_(compiled)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    graphs = []
    for number, (kind, cut) in enumerate([(kind, cut) for kind in AttentionKind for cut in (3, 8, 13)]):
        segments = torch.tensor([[1] * cut + [2] * (16 - cut), [1] * 16])
        ids = torch.randint(0, 97, segments.shape, generator=torch.Generator().manual_seed(number))
        positions = torch.arange(cut)
        losses = []
        for encoder in (compiled, plain):
            encoder.zero_grad()
            layout = SegmentLayout.from_segments(segments)
            loss = encoder(ids, layout, kind, positions_N=positions, labels_N=positions, scale=1.0)
            loss.backward()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[1], "compiled again after the second number of targets"
