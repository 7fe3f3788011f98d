"""Shapes: what is refused, and how many parameters the presets have."""

import pytest
import torch
from pydantic import ValidationError

from toolkit.core.errors import SettingsError
from toolkit.model import Encoder, ModelSettings, model_settings, parameter_counts
from toolkit.model.parameters import parameter_axes, shape_of
from toolkit.model.presets import MODEL_PRESETS
from toolkit.testing.models import MODEL_OPTIONS

# Embedding, one layer, blocks and final norm, those and the embedding, everything: the paper's table, and Llama 3.2's.
PUBLISHED_COUNTS = {
    "210m": (98_500_608, 9_438_720, 113_265_408, 211_766_016, 310_266_624),
    "610m": (147_750_912, 17_697_024, 460_123_776, 607_874_688, 755_625_600),
    "1b": (221_626_368, 34_508_160, 966_230_208, 1_187_856_576, 1_409_482_944),
    "3b": (394_002_432, 100_669_440, 2_818_747_392, 3_212_749_824, 3_212_749_824),
}


@pytest.mark.parametrize("preset", PUBLISHED_COUNTS)
def test_counts_of_the_built_model_and_of_the_formula_are_the_published_ones(preset: str) -> None:
    with torch.device("meta"):
        encoder = Encoder(MODEL_PRESETS[preset])
    embedding = encoder.model.embed_tokens.weight.numel()
    layer = sum(parameter.numel() for parameter in encoder.model.layers[0].parameters())
    model = sum(parameter.numel() for parameter in encoder.model.parameters())
    total = sum(parameter.numel() for parameter in encoder.parameters())
    assert (embedding, layer, model - embedding, model, total) == PUBLISHED_COUNTS[preset]
    counts = parameter_counts(MODEL_PRESETS[preset])
    assert not counts.transform
    found = (counts.embedding, counts.layer, counts.body, counts.body_and_embedding, counts.total)
    assert found == PUBLISHED_COUNTS[preset]


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, *MODEL_OPTIONS.values()])
@pytest.mark.parametrize("preset", ["test", "nano"])
def test_formula_and_built_model_agree(preset: str, changes: dict[str, object]) -> None:
    settings = model_settings(preset, vocab_size=300, **changes)
    with torch.device("meta"):
        encoder = Encoder(settings)
    shapes = {name: shape_of(axes, settings) for name, axes in parameter_axes(settings).items()}
    assert shapes == {name: tuple(parameter.shape) for name, parameter in encoder.named_parameters()}
    assert sum(parameter.numel() for parameter in encoder.parameters()) == parameter_counts(settings).total


def test_nano_has_the_size_its_page_says() -> None:
    assert parameter_counts(model_settings("nano", vocab_size=8192)).total == 3_146_880


@pytest.mark.parametrize(
    ("preset", "total"), [("17m", 16_797_440), ("32m", 31_883_136), ("68m", 68_144_640), ("150m", 149_014_272)]
)
def test_small_presets_have_the_sizes_that_they_are_named_after(preset: str, total: int) -> None:
    """Ettin's depths, widths and vocabulary; embedding and head are one matrix."""
    settings = MODEL_PRESETS[preset]
    with torch.device("meta"):
        encoder = Encoder(settings)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == parameter_counts(settings).total == total
    assert total == pytest.approx(int(preset.removesuffix("m")) * 1e6, rel=0.02)


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"'300m' is not a preset.*nano, 17m, 32m"):
        model_settings("300m")


def test_vocabulary_must_be_known_to_build_and_to_count() -> None:
    with pytest.raises(SettingsError, match="vocab_size"):
        Encoder(MODEL_PRESETS["nano"])
    with pytest.raises(SettingsError, match="vocab_size"):
        parameter_counts(MODEL_PRESETS["nano"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 65}, "not a multiple of num_attention_heads=4"),
        ({"hidden_size": 60, "num_attention_heads": 4}, "even width"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"head_dim": 15}, "head_dim = 15 wide"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'linear' or 'llama3'"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "high_freq_factor": 1.0}},
            "high_freq_factor=1.0 is not above low_freq_factor=1.0",
        ),
        ({"hidden": 64}, "Extra inputs"),
        ({"num_hidden_layers": 0}, "greater than or equal to 1"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        model_settings("test", **changes)


def test_key_value_heads_default_to_query_heads() -> None:
    settings = ModelSettings(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4)
    assert (settings.num_key_value_heads, settings.key_value_heads, settings.head_size) == (None, 4, 2)
