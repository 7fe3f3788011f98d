"""Shapes with a name; parameters of a shape, and the model FLOPs of a training step, counted without building it.

`210m`, `610m` and `1b` are the sizes of arXiv 2507.00994, `17m` to `150m` those of Ettin (arXiv 2507.11412), `3b` is
that of Llama 3.2 3B; `nano` learns something on a laptop within minutes; `test` is for tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.model.config import ModelSettings, RopeScaling

_FLOPS_PER_WEIGHT = 6
# Scores and mixed values: two products of H x E numbers for each pair.
_FLOPS_PER_PAIR_AND_NUMBER = 12


def _ettin(width: int, num_layers: int) -> ModelSettings:
    """Depth, width, vocabulary and tied head of an Ettin model, in blocks of this project: heads of 64, F = 1.5 D."""
    return ModelSettings(
        vocab_size=50_368,
        hidden_size=width,
        intermediate_size=width * 3 // 2,
        num_hidden_layers=num_layers,
        num_attention_heads=width // 64,
        tie_word_embeddings=True,
    )


MODEL_PRESETS: dict[str, ModelSettings] = {
    "test": ModelSettings(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    ),
    "nano": ModelSettings(hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4),
    "17m": _ettin(256, 7),
    "32m": _ettin(384, 10),
    "68m": _ettin(512, 19),
    "150m": _ettin(768, 22),
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
    "3b": ModelSettings(
        vocab_size=128_256,
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=28,
        num_attention_heads=24,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        rope_theta=500_000.0,
        rope_scaling=RopeScaling(rope_type="llama3", factor=32.0),
        max_position_embeddings=131_072,
    ),
}
"""Presets by name. Where `vocab_size` is None the tokenizer decides."""


def model_settings(preset: str, **changes: Any) -> ModelSettings:
    """A preset with some fields changed; a SettingsError where there is none, pydantic's where they make no model."""
    if preset not in MODEL_PRESETS:
        raise SettingsError(
            f"model.preset={preset!r} is not a preset. Choose one of {', '.join(MODEL_PRESETS)}, "
            "or give the sizes themselves (model.hidden_size, ...)."
        )
    fields: Mapping[str, Any] = MODEL_PRESETS[preset].model_dump() | changes
    return ModelSettings(**fields)


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters of a model, by part."""

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
    """Count the parameters of a shape, with its vocabulary size, without building it."""
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


def training_flops(settings: ModelSettings, *, tokens: float, targets: float, attended_pairs: float) -> float:
    """Model FLOPs of forward and backward passes over some positions.

        6 x (parameters of the body) x tokens  +  6 x V x D x targets  +  12 x layers x H x E x attended pairs

    What the objective asks for counts: no padding, the head at the targets only, attention inside segments only and,
    where it is causal, only backwards. A multiplication and an addition are two operations, and the backward pass costs
    twice the forward pass, so each use of a weight in a step counts 6. What an implementation spends on top (a wasted
    half of a causal product, activations computed twice) does not count, and what it saves (the last block at the
    targets only) still does: the number belongs to the model and the data, so rates of two implementations compare.

    Args:
        settings: the shape, with its vocabulary size.
        tokens: positions that are not padding.
        targets: positions at which the head is needed.
        attended_pairs: (query, key) pairs that see each other. With tokens = 1 this is the attended length: positions
            that a position sees in the mean.
    """
    counts = parameter_counts(settings)
    attention_width = settings.num_attention_heads * settings.head_size
    weights = counts.body * tokens + counts.embedding * targets
    attention = _FLOPS_PER_PAIR_AND_NUMBER * settings.num_hidden_layers * attention_width * attended_pairs
    return _FLOPS_PER_WEIGHT * weights + attention
