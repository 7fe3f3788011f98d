"""Shapes with a name, and how many parameters a shape has.

`210m`, `610m` and `1b` are the sizes of arXiv 2507.00994; `nano` learns something on a laptop within minutes;
`test` is for tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.model.config import ModelSettings

MODEL_PRESETS: dict[str, ModelSettings] = {
    "test": ModelSettings(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    ),
    "nano": ModelSettings(hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4),
    "210m": ModelSettings(
        vocab_size=128_256,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
    ),
    "610m": ModelSettings(
        vocab_size=128_256,
        hidden_size=1152,
        intermediate_size=4096,
        num_hidden_layers=26,
        num_attention_heads=18,
        num_key_value_heads=6,
    ),
    "1b": ModelSettings(
        vocab_size=128_256,
        hidden_size=1728,
        intermediate_size=5120,
        num_hidden_layers=28,
        num_attention_heads=18,
        num_key_value_heads=6,
    ),
}
"""Presets by name. Where `vocab_size` is None the tokenizer decides."""


def model_settings(preset: str, **changes: Any) -> ModelSettings:
    """A preset with some fields changed.

    Raises:
        SettingsError: no preset has that name.
        pydantic.ValidationError: the changed fields do not make a model.
    """
    if preset not in MODEL_PRESETS:
        raise SettingsError(
            f"model.preset={preset!r} is not a preset. Choose one of {', '.join(MODEL_PRESETS)}, "
            "or give the sizes themselves (model.hidden_size, ...)."
        )
    fields: Mapping[str, Any] = MODEL_PRESETS[preset].model_dump() | changes
    return ModelSettings(**fields)


@dataclass(frozen=True)
class ParameterCounts:
    """How many parameters a model has, by part."""

    embedding: int
    """V x D; the head is as large."""
    layer: int
    """One block."""
    body: int
    """All blocks and the final norm."""
    body_and_embedding: int
    """What a model's marketing size counts."""
    total: int
    """Every parameter; a tied head is not counted twice."""


def parameter_counts(settings: ModelSettings) -> ParameterCounts:
    """Count the parameters of a shape without building it.

    Raises:
        SettingsError: the vocabulary size is not known yet.
    """
    if settings.vocab_size is None:
        raise SettingsError("model.vocab_size is not known, so parameters cannot be counted. Give it a number.")
    width, inner = settings.hidden_size, settings.intermediate_size
    query_width = settings.num_attention_heads * settings.head_size
    key_value_width = settings.key_value_heads * settings.head_size
    biases = query_width + 2 * key_value_width if settings.qkv_bias else 0
    head_norms = 2 * settings.head_size if settings.qk_norm else 0
    attention = 2 * width * query_width + 2 * width * key_value_width + biases + head_norms
    embedding = settings.vocab_size * width
    layer = attention + 3 * width * inner + 2 * width
    body = settings.num_hidden_layers * layer + width
    head = 0 if settings.tie_word_embeddings else embedding
    return ParameterCounts(embedding, layer, body, body + embedding, body + embedding + head)
