"""Model FLOPs: the table of the targets, and a count of every product of a small model."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from toolkit.core.types import AttentionKind
from toolkit.model import Encoder, model_settings, parameter_counts, training_flops
from toolkit.model.flops import attended_pairs
from toolkit.model.initialization import initialize_
from toolkit.model.kernels.plain_attention import attend_by_bmm
from toolkit.model.segments import SegmentLayout
from toolkit.testing.models import MODEL_OPTIONS, tiny_settings


@pytest.mark.parametrize(("preset", "giga"), [("210m", 1.067), ("610m", 3.606), ("1b", 7.122)])
def test_the_presets_at_40_percent_and_random_cuts(preset, giga):
    """Operations a token at S = 2048, attended length 1,365: 2S/3, of rows cut at a uniform point."""
    found = training_flops(
        model_settings(preset), tokens=1, targets=0.4, attended_pairs=1365 * model_settings(preset).num_hidden_layers
    )
    assert round(found / 1e9, 3) == giga


def test_a_case_by_hand():
    """One block of width 2 with one head, feed-forward 3, vocabulary 5: 16 + 18 weights and 3 x 2 of norms."""
    shape = model_settings(
        "test", vocab_size=5, hidden_size=2, intermediate_size=3, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1,
    )  # fmt: skip
    assert parameter_counts(shape).body == 40
    assert training_flops(shape, tokens=7, targets=3, attended_pairs=11) == 6 * 40 * 7 + 6 * 5 * 2 * 3 + 12 * 2 * 11


def test_a_target_takes_all_of_the_head():
    """ModernBERT's has a dense part and its norm in front of the matrix over 97 words, and a bias of each of these."""
    settings = tiny_settings(**MODEL_OPTIONS["modernbert"])
    width = settings.hidden_size
    more, fewer = (training_flops(settings, tokens=7, targets=targets, attended_pairs=11) for targets in (4, 3))
    assert more - fewer == 6 * (width * width + width + 97 * (width + 1))
    # UltraBERT's passes 48 numbers on its way.
    settings = tiny_settings(**MODEL_OPTIONS["ultrabert"])
    more, fewer = (training_flops(settings, tokens=7, targets=targets, attended_pairs=11) for targets in (4, 3))
    assert more - fewer == 6 * width * (2 * 48 + 97)


@pytest.mark.parametrize(("kind", "expected"), [(AttentionKind.BIDIRECTIONAL, 9 + 9 + 4), (AttentionKind.CAUSAL, 15)])
def test_pairs_are_counted_inside_segments_and_not_at_padding(kind, expected):
    segments = torch.tensor([[1, 1, 1, 2, 2, 2], [1, 1, 0, 0, 0, 0]])
    layout = SegmentLayout.from_segments(segments)
    assert attended_pairs(tiny_settings(num_hidden_layers=1), kind, layout.lengths) == expected
    query = torch.randn(12, 1, 12)
    mixed = attend_by_bmm(query, query, torch.eye(12)[:, None], kind, layout)
    assert int((mixed != 0).sum()) == expected


def test_it_is_what_torch_counts_but_for_norms_and_the_last_block(monkeypatch):
    """Every target listed, one segment: nothing is saved, so the products that run are the products that count."""
    monkeypatch.setattr("toolkit.model.layers._has_slow_mkl", lambda: False)
    settings = tiny_settings()
    encoder = Encoder(settings)
    initialize_(encoder, seed=0)
    ids, everywhere = torch.randint(0, 97, (2, 16)), torch.arange(32)
    layout = SegmentLayout.from_segments(torch.ones(2, 16, dtype=torch.int64))
    with FlopCounterMode(display=False) as counter:
        loss = encoder(
            ids, layout, AttentionKind.BIDIRECTIONAL, positions_N=everywhere, labels_N=ids.flatten(), scale=1.0
        )
        loss.backward()
    norms = 6 * 32 * (settings.num_hidden_layers * 2 + 1) * settings.hidden_size
    pairs = attended_pairs(settings, AttentionKind.BIDIRECTIONAL, layout.lengths)
    counted = training_flops(settings, tokens=32, targets=32, attended_pairs=pairs) - norms
    assert counter.get_total_flops() == counted
