"""Named model shapes.

`210m`, `610m` and `1b` are the sizes of arXiv 2507.00994, `17m` to `150m` those of Ettin (arXiv 2507.11412), `3b` is
that of Llama 3.2 3B; `nano` learns something on a laptop within minutes; `test` is for tests.
"""

from collections.abc import Mapping
from typing import Any

from toolkit.core.errors import SettingsError
from toolkit.model.config import ModelSettings, RopeScaling


def _ettin(width: int, num_layers: int) -> ModelSettings:
    """Depth, width, vocabulary and tied head of an Ettin model, with this project's blocks: heads of 64, F = 1.5 D."""
    return ModelSettings(
        vocab_size=50_368,
        hidden_size=width,
        intermediate_size=width * 3 // 2,
        num_hidden_layers=num_layers,
        num_attention_heads=width // 64,
        tie_word_embeddings=True,
    )


def _modernbert(**shape: Any) -> ModelSettings:
    """ModernBERT as in its first training phase, with 1,024 positions (arXiv 2412.13663, table 4 and appendix A)."""
    return ModelSettings(
        family="modernbert",
        vocab_size=50_368,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        **shape,
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
    "modernbert-base": _modernbert(
        hidden_size=768, intermediate_size=1152, num_hidden_layers=22, num_attention_heads=12
    ),
    "modernbert-large": _modernbert(
        hidden_size=1024, intermediate_size=2624, num_hidden_layers=28, num_attention_heads=16
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
"""Presets by name. If `vocab_size` is None, the tokenizer determines it."""


def model_settings(preset: str, **changes: Any) -> ModelSettings:
    """A preset with some fields changed. Raise `SettingsError` if unknown, `ValidationError` if fields are invalid."""
    if preset not in MODEL_PRESETS:
        raise SettingsError(
            f"model.preset={preset!r} is not a preset. Choose one of {', '.join(MODEL_PRESETS)}, "
            "or give the sizes themselves (model.hidden_size, ...)."
        )
    fields: Mapping[str, Any] = MODEL_PRESETS[preset].model_dump() | changes
    return ModelSettings(**fields)
