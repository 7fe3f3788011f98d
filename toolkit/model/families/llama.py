"""Llama and what is built like it: SmolLM, Mistral, Qwen2 and 3, and the encoder EuroBERT (arXiv 2503.05500).

One set of tensors serves all: transformers' EuroBERT is Llama with a bidirectional mask, and the names agree. A class
of a decoder computes bidirectional attention where its configuration says `is_causal: false`, which is how servers that
do not know EuroBERT take an encoder. Two options of ours need more: where query, key and value have biases, the classes
have one at the output too, which is written as zeros; and norms of heads are in transformers' Qwen3 alone.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from toolkit.core.errors import CheckpointError, UserError
from toolkit.core.types import AttentionKind
from toolkit.model.config import ModelSettings
from toolkit.model.families.family import Family, HubForm, HubType

_SILU = ("silu", "swish")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_KEYS_OF_ANGLES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


class Llama(Family):
    """Llama's parts."""

    norm = "rms"
    activation = "silu"
    has_embedding_norm = False
    has_dense_head = False
    scaled_by_depth = ()
    types: ClassVar = {
        "llama": HubType("Llama, SmolLM, TinyLlama"),
        "mistral": HubType("Mistral"),
        "qwen2": HubType("Qwen2"),
        "qwen3": HubType("Qwen3"),
        "eurobert": HubType("EuroBERT", is_encoder=True),
    }

    def hub_form(self, settings: ModelSettings, attention: AttentionKind, architecture: str | None) -> HubForm:
        """EuroBERT for an encoder that it can be, else Llama, or with norms of heads its successor Qwen3."""
        is_encoder = attention is AttentionKind.BIDIRECTIONAL
        if architecture == "eurobert" and not is_encoder:
            raise UserError(
                "--form causal writes a decoder, and --architecture eurobert is an encoder. "
                "Use --architecture llama, or --form bidirectional."
            )
        if architecture == "eurobert" and settings.qk_norm:
            raise UserError(
                "--architecture eurobert has no norms of heads, and this model has them (model.qk_norm). "
                "Use --architecture llama, which writes Qwen3ForCausalLM."
            )
        if settings.hidden_size % settings.num_attention_heads and not settings.qk_norm:
            raise CheckpointError(
                f"transformers' Llama and EuroBERT ask that hidden_size={settings.hidden_size} is a multiple of "
                f"num_attention_heads={settings.num_attention_heads}, even where head_dim is given. "
                "This model cannot be exported; train one of such a width."
            )
        config: dict[str, Any] = {
            "num_key_value_heads": settings.key_value_heads,
            "head_dim": settings.head_size,
            "attention_bias": settings.qkv_bias,
            "rms_norm_eps": settings.rms_norm_eps,
            "rope_parameters": _rope_scaling(settings) | {"rope_theta": settings.rope_theta},
        }
        if is_encoder and architecture != "llama" and not settings.qk_norm:
            return HubForm("eurobert", "EuroBertForMaskedLM", config | {"classifier_pooling": "mean"})
        if is_encoder:
            # Nothing is generated, so no keys and values are kept for a next token.
            config |= {"is_causal": False, "use_cache": False}
        if settings.qk_norm:
            return HubForm("qwen3", "Qwen3ForCausalLM", config)
        return HubForm("llama", "LlamaForCausalLM", config)

    def settings_of(self, config: Any) -> dict[str, Any]:
        """See `Family`."""
        angles = dict(config.rope_parameters)
        heads, kind = config.num_attention_heads, angles.get("rope_type", "default")
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        scaling = {key: angles.get(key) for key in ("rope_type", *_KEYS_OF_ANGLES[kind])} if kind != "default" else None
        return {
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": None if head_dim * heads == config.hidden_size else head_dim,
            "qkv_bias": config.model_type == "qwen2" or bool(getattr(config, "attention_bias", False)),
            "qk_norm": config.model_type == "qwen3",
            "rms_norm_eps": float(config.rms_norm_eps),
            "rope_theta": angles.get("rope_theta"),
            "rope_scaling": scaling,
        }

    def unsupported(self, config: Any, raw: Mapping[str, Any]) -> Iterator[str]:
        """See `Family`."""
        for key in ("layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"):
            if raw.get(key) and "rms_norm_eps" not in raw:
                yield f"a norm other than RMSNorm ({key}={raw[key]!r})"
        angles = config.rope_parameters or {}
        if by_layer := [key for key, value in angles.items() if isinstance(value, dict)]:
            yield f"rotary angles that differ from layer to layer (rope_parameters of {', '.join(by_layer)})"
        kind = angles.get("rope_type", "default")
        if kind not in _KEYS_OF_ANGLES:
            yield f"rotary angles of type {kind!r} (rope_scaling; supported: {', '.join(_KEYS_OF_ANGLES)})"
        share = angles.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
        if share not in (None, 1):
            yield f"heads that are rotated in part (partial_rotary_factor={share})"
        if config.hidden_act not in _SILU:
            yield f"the activation hidden_act={config.hidden_act!r} (ours is silu)"
        if getattr(config, "mlp_bias", False):
            yield "biases in the feed-forward layers (mlp_bias=true)"
        window = _window(config)
        if window is not None and window < config.max_position_embeddings:
            yield f"sliding-window attention (sliding_window={window:,})"
        others = {str(kind) for kind in getattr(config, "layer_types", None) or ()} - {_FULL}
        if others - {_SLIDING} or (others and window is None):
            yield f"layers of other kinds than full attention (layer_types: {', '.join(sorted(others))})"

    def notes(self, config: Any) -> Iterator[str]:
        """See `Family`."""
        if (window := _window(config)) is not None:
            yield f"sliding_window={window:,} reaches over all {config.max_position_embeddings:,} positions"
        yield from super().notes(config)


def _window(config: Any) -> int | None:
    """The window that some layer looks through; None where all see everything."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if config.model_type in ("llama", "eurobert") or (kinds and _SLIDING not in kinds):
        return None
    return window


def _rope_scaling(settings: ModelSettings) -> dict[str, Any]:
    """The stretch of the angles in transformers' words, with the keys that its type has; it warns of others."""
    scaling = settings.rope_scaling
    if scaling is None:
        return {"rope_type": "default"}
    return scaling.model_dump(include={"rope_type", "factor"} if scaling.rope_type == "linear" else None)
