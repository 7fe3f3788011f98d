"""Parts shared by families, in transformers' configurations: grouped heads, and sliding-window layers."""

from collections.abc import Iterator
from typing import Any

from toolkit.core.errors import CheckpointError
from toolkit.model.config import ModelSettings, layer_types

_SILU = ("silu", "swish")


def heads_config(settings: ModelSettings) -> dict[str, Any]:
    """Configuration keys of Llama's attention and norms."""
    return {
        "num_key_value_heads": settings.key_value_heads,
        "head_dim": settings.head_size,
        "attention_bias": settings.qkv_bias,
        "rms_norm_eps": settings.rms_norm_eps,
    }


def check_width(settings: ModelSettings, models: str) -> None:
    """Raise `CheckpointError` for a width that EuroBERT and related classes reject."""
    if settings.hidden_size % settings.num_attention_heads:
        raise CheckpointError(
            f"transformers' {models} ask that hidden_size={settings.hidden_size} is a multiple of "
            f"num_attention_heads={settings.num_attention_heads}, even where head_dim is given. "
            "This model cannot be exported; train one of such a width."
        )


def heads_of(config: Any) -> dict[str, Any]:
    """Settings from the keys of `heads_config`."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return {
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": None if head_dim * heads == config.hidden_size else head_dim,
        "qkv_bias": bool(getattr(config, "attention_bias", False)),
        "rms_norm_eps": float(config.rms_norm_eps),
    }


def unsupported_feed_forward(config: Any) -> Iterator[str]:
    """Features of Llama's feed-forward that ours does not have."""
    if config.hidden_act not in _SILU:
        yield f"the activation hidden_act={config.hidden_act!r} (ours is silu)"
    if getattr(config, "mlp_bias", False):
        yield "biases in the feed-forward layers (mlp_bias=true)"


def windows_config(settings: ModelSettings) -> dict[str, Any]:
    """Configuration keys of layer types and the base of the angles in each; the window's own key is not included."""
    angles = {"full_attention": settings.rope_theta, "sliding_attention": settings.local_rope_theta}
    return {
        "layer_types": list(settings.layer_types),
        "rope_parameters": {key: {"rope_type": "default", "rope_theta": base} for key, base in angles.items()},
    }


def windows_of(config: Any, family: str) -> dict[str, Any]:
    """Settings from the keys of `windows_config`; a base that no layer uses may be missing."""
    angles, keys = config.rope_parameters, {"full_attention": "rope_theta", "sliding_attention": "local_rope_theta"}
    return {
        "family": family,
        "global_attn_every_n_layers": _period(config.layer_types, family),
        **{key: angles[each]["rope_theta"] for each, key in keys.items() if each in angles},
    }


def unsupported_windows(config: Any, family: str) -> Iterator[str]:
    """Layer orders and rotary angles that ours does not have."""
    by_type = {key: angles for key, angles in config.rope_parameters.items() if isinstance(angles, dict)}
    if len(by_type) < len(config.rope_parameters):
        yield "one base of angles for all layers (rope_parameters)"
    for layer_type, angles in by_type.items():
        if angles.get("rope_type", "default") != "default":
            yield f"rotary angles of type {angles['rope_type']!r} (rope_parameters of {layer_type})"
        if angles["rope_theta"] is None:
            yield f"no base of the angles of {layer_type}, where transformers 4 took global_rope_theta: write that"
    if _period(config.layer_types, family) is None:
        yield "layers with and without a window in another order than one without every so many (layer_types)"


def _period(kinds: list[str], family: str) -> int | None:
    """Period of the full-attention layers; None if they are not periodic."""
    # Up to one more than there are layers, for a family whose layers may all have a window.
    periods = range(1, len(kinds) + 2)
    return next((every for every in periods if layer_types(family, len(kinds), every) == tuple(kinds)), None)
