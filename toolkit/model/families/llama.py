"""Llama and models like it: SmolLM, Mistral, Qwen2 and 3, and the encoder EuroBERT (arXiv 2503.05500).

All have the same tensors: transformers' EuroBERT is Llama with a bidirectional mask, and the names agree. A decoder
class computes bidirectional attention if its configuration says `is_causal: false`, which is how servers without
EuroBERT run an encoder. Two options of ours need more: with biases of query, key and value, the classes have an output
bias too, which is written as zeros; and only transformers' Qwen3 has norms of heads.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from toolkit.core.errors import UserError
from toolkit.core.types import AttentionKind
from toolkit.model.config import ModelSettings
from toolkit.model.families.family import Family, HubForm, HubType
from toolkit.model.families.parts import check_width, heads_config, heads_of, unsupported_feed_forward

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
    transform = None
    has_head_bias = False
    scaled_by_depth = ()
    types: ClassVar = {
        "llama": HubType("Llama, SmolLM, TinyLlama"),
        "mistral": HubType("Mistral"),
        "qwen2": HubType("Qwen2"),
        "qwen3": HubType("Qwen3"),
        "eurobert": HubType("EuroBERT", is_encoder=True),
    }

    def hub_form(self, settings: ModelSettings, attention: AttentionKind, architecture: str | None) -> HubForm:
        """EuroBERT for an encoder if possible, else Llama, or Qwen3 for norms of heads."""
        is_encoder = attention is AttentionKind.BIDIRECTIONAL
        if architecture == "eurobert" and settings.qk_norm:
            raise UserError(
                "--architecture eurobert has no norms of heads, and this model has them (model.qk_norm). "
                "Use --architecture llama, which writes Qwen3ForCausalLM."
            )
        if not settings.qk_norm:
            check_width(settings, "Llama and EuroBERT")
        angles = _rope_scaling(settings) | {"rope_theta": settings.rope_theta}
        config = heads_config(settings) | {"rope_parameters": angles}
        if is_encoder and architecture != "llama" and not settings.qk_norm:
            return HubForm("eurobert", "EuroBertForMaskedLM", config | {"classifier_pooling": "mean"})
        if is_encoder:
            # Nothing is generated, so no KV cache is kept.
            config |= {"is_causal": False, "use_cache": False}
        if settings.qk_norm:
            return HubForm("qwen3", "Qwen3ForCausalLM", config)
        return HubForm("llama", "LlamaForCausalLM", config)

    def settings_of(self, config: Any) -> dict[str, Any]:
        """See `Family`."""
        angles = dict(config.rope_parameters)
        kind, shared = angles.get("rope_type", "default"), heads_of(config)
        scaling = {key: angles.get(key) for key in ("rope_type", *_KEYS_OF_ANGLES[kind])} if kind != "default" else None
        return {
            **shared,
            "qkv_bias": config.model_type == "qwen2" or shared["qkv_bias"],
            "qk_norm": config.model_type == "qwen3",
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
        yield from unsupported_feed_forward(config)
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
    """Window of the sliding layers; None if all layers have full attention."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if config.model_type in ("llama", "eurobert") or (kinds and _SLIDING not in kinds):
        return None
    return window


def _rope_scaling(settings: ModelSettings) -> dict[str, Any]:
    """RoPE scaling as transformers writes it, with only the keys of its type; transformers warns about others."""
    scaling = settings.rope_scaling
    if scaling is None:
        return {"rope_type": "default"}
    return scaling.model_dump(include={"rope_type", "factor"} if scaling.rope_type == "linear" else None)
