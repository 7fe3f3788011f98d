"""How an encoder is cut into pipeline stages."""

import pytest
import torch

from toolkit.core.errors import SettingsError
from toolkit.core.types import AttentionKind
from toolkit.model import Encoder, model_settings
from toolkit.model.encoder import ForwardContext
from toolkit.model.segments import SegmentLayout
from toolkit.parallel.division import balanced_stages, check_pipeline_parallel, head_in_blocks, stage_blocks
from toolkit.parallel.shares import allocate_
from toolkit.parallel.stages import Stage
from toolkit.parallel.topology import ParallelSettings
from toolkit.testing.models import MODEL_OPTIONS, tiny_encoder, tiny_settings


@pytest.mark.parametrize(
    ("blocks", "pp", "extra", "expected"),
    [
        (12, 1, 10.4, (12,)),
        (12, 2, 0.0, (6, 6)),
        (12, 2, 4.0, (8, 4)),
        (12, 2, 10.4, (11, 1)),
        (12, 4, 3.3, (3, 4, 4, 1)),
        (26, 4, 2.9, (7, 7, 7, 5)),
        (5, 3, 0.0, (1, 2, 2)),
        (4, 4, 100.0, (1, 1, 1, 1)),
    ],
)
def test_the_slowest_stage_does_as_little_as_it_can(blocks, pp, extra, expected):
    assert balanced_stages(blocks, pp, last_stage_extra=extra) == expected


def test_no_cut_has_a_faster_slowest_stage():
    for blocks in range(3, 9):
        for extra in (0.0, 0.5, 2.6, 10.0):
            found = balanced_stages(blocks, 3, last_stage_extra=extra)
            cuts = [(a, b, blocks - a - b) for a in range(1, blocks - 1) for b in range(1, blocks - a)]
            slowest = [max(*cut[:-1], cut[-1] + extra) for cut in cuts]
            assert max(*found[:-1], found[-1] + extra) == min(slowest)
            assert sum(found) == blocks


def test_the_head_in_blocks():
    """The preset 210m: 128,256 x 768 in the head, 4 x 768^2 + 3 x 768 x 3072 and two norms in a block."""
    settings = model_settings("210m")
    assert head_in_blocks(settings, targets_per_position=1.0) == pytest.approx(128_256 * 768 / 9_438_720)
    assert head_in_blocks(settings, targets_per_position=0.4) == pytest.approx(0.4 * 128_256 * 768 / 9_438_720)


def test_explicit_stages_are_taken_as_they_are():
    settings = tiny_settings(num_hidden_layers=6)
    explicit = ParallelSettings(pp=3, stages=(3, 1, 2))
    check_pipeline_parallel(settings, explicit)
    assert stage_blocks(settings, explicit, targets_per_position=1.0) == [range(3), range(3, 4), range(4, 6)]


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (ParallelSettings(pp=7), r"parallel.pp=7(.|\n)*6 blocks(.|\n)*at most 6"),
        (ParallelSettings(pp=2, stages=(3, 4)), "adds up to 7 blocks, but the model has 6"),
        (ParallelSettings(pp=2, stages=(1, 2, 3)), "3 stages, but parallel.pp=2"),
    ],
)
def test_what_cannot_be_cut_is_refused(parallel, message):
    with pytest.raises(SettingsError, match=message):
        check_pipeline_parallel(tiny_settings(num_hidden_layers=6), parallel)


_OPTIONS = [{}, {"tie_word_embeddings": True}, MODEL_OPTIONS["modernbert"], MODEL_OPTIONS["ultrabert"]]


@pytest.mark.parametrize("options", _OPTIONS)
def test_stages_hold_the_parameters_of_the_encoder_under_their_names(options):
    encoder = tiny_encoder(seed=0, num_hidden_layers=4, **options)
    names = [name for name, _ in encoder.named_parameters()]
    cuts = [range(1), range(1, 3), range(3, 4)]
    held = [[name for name, _ in Stage(encoder, blocks).named_parameters()] for blocks in cuts]
    shared = {"model.embed_tokens.weight"} if encoder.settings.tie_word_embeddings else set()
    assert sorted(name for stage in held for name in stage) == sorted([*names, *shared])
    assert set(held[0]) & set(held[2]) == shared
    assert {name.split(".")[2] for name in held[1]} == {"1", "2"}


@pytest.mark.parametrize("kind", list(AttentionKind))
@pytest.mark.parametrize("options", _OPTIONS)
def test_stages_one_after_the_other_are_the_encoder(kind, options):
    encoder = tiny_encoder(seed=0, num_hidden_layers=4, **options)
    ids_BS = torch.arange(32).view(2, 16)
    segments_BS = torch.tensor([[1] * 9 + [2] * 7, [1] * 12 + [0] * 4])
    positions_N = torch.tensor([1, 5, 11, 20])
    labels_N = torch.tensor([3, 4, 90, 7])
    expected = encoder(ids_BS, segments_BS, kind, positions_N=positions_N, labels_N=labels_N, scale=1.0)
    contexts = ForwardContext.by_layer_type(
        encoder.settings, SegmentLayout.from_segments(segments_BS), kind, positions_N
    )
    passed = ids_BS
    for blocks in (range(1), range(1, 3), range(3, 4)):
        stage = Stage(encoder, blocks)
        stage.expect(iter([(contexts, labels_N, None)]))
        passed = stage(passed)
    assert torch.equal(passed, expected)


def test_a_stage_allocates_its_own_blocks_only():
    with torch.device("meta"):
        encoder = Encoder(tiny_settings(num_hidden_layers=4, tie_word_embeddings=True))
    stage = Stage(encoder, range(3, 4))
    allocate_(stage, 0, settings=encoder.settings)
    assert stage.lm_head.weight is stage.model.embed_tokens.weight
    assert stage.lm_head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert {parameter.device.type for parameter in stage.parameters()} == {"cpu"}
    assert {parameter.device.type for parameter in encoder.model.layers[:3].parameters()} == {"meta"}
