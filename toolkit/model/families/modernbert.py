"""ModernBERT (arXiv 2412.13663, section 2), mmBERT, and Ettin's encoders and decoders (arXiv 2507.11412).

Sliding-window layers alternate with full-attention layers, each type with its own base of the rotary angles. The
encoder's class and the decoder's have the same tensors, some of them fused in the encoder's; the decoder's computes
bidirectional attention if its configuration says `is_causal: false`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from toolkit.core.types import AttentionKind
from toolkit.model.config import ModelSettings
from toolkit.model.families.family import Family, HubForm, HubType
from toolkit.model.families.parts import unsupported_windows, windows_config, windows_of

_NAMES = {
    "model.embed_tokens": "model.embeddings.tok_embeddings",
    "model.embed_norm": "model.embeddings.norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn.q_proj",
    "self_attn.k_proj": "attn.k_proj",
    "self_attn.v_proj": "attn.v_proj",
    "self_attn.o_proj": "attn.Wo",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp.Wi",
    "mlp.up_proj": "mlp.Wi",
    "mlp.down_proj": "mlp.Wo",
    "model.norm": "model.final_norm",
    "head.dense": "lm_head.dense",
    "head.norm": "lm_head.norm",
    "lm_head": "decoder",
}
_ENCODER_NAMES = _NAMES | {
    **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "attn.Wqkv"),
    "head.dense": "head.dense",
    "head.norm": "head.norm",
}
_WITHOUT = {
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
}
"""The only values of these configuration keys that ours supports."""


class ModernBert(Family):
    """ModernBERT's parts."""

    norm = "layer"
    activation = "gelu"
    has_embedding_norm = True
    transform = "dense"
    has_head_bias = True
    # Weights that add to the residual stream, and the head's (appendix A).
    scaled_by_depth = ("o_proj.weight", "down_proj.weight", "head.dense.weight")
    types: ClassVar = {
        "modernbert": HubType("ModernBERT, mmBERT, Ettin", is_encoder=True, names=_ENCODER_NAMES),
        "modernbert-decoder": HubType("Ettin's decoders", names=_NAMES),
    }

    def hub_form(self, settings: ModelSettings, attention: AttentionKind, architecture: str | None) -> HubForm:
        """The encoder's or the decoder's class; the decoder's for an encoder too, if requested."""
        is_encoder = attention is AttentionKind.BIDIRECTIONAL
        config = windows_config(settings)
        config |= {"norm_eps": settings.rms_norm_eps, "local_attention": settings.local_attention}
        if is_encoder and architecture != "modernbert-decoder":
            return HubForm("modernbert", "ModernBertForMaskedLM", config | {"classifier_pooling": "mean"})
        if is_encoder:
            config |= {"is_causal": False, "use_cache": False}
        return HubForm("modernbert-decoder", "ModernBertDecoderForCausalLM", config)

    def special_ids(self, ids: dict[str, int | None], model_type: str) -> dict[str, int | None]:
        """See `Family`; without them, transformers uses those of ModernBERT's own tokenizer."""
        if model_type == "modernbert-decoder":
            # Its configuration does not accept None.
            known = next((each for each in (ids["eos_token_id"], *ids.values()) if each is not None), 0)
            ids = {key: known if each is None else each for key, each in ids.items()}
        return ids | {"cls_token_id": ids["bos_token_id"], "sep_token_id": ids["eos_token_id"]}

    def settings_of(self, config: Any) -> dict[str, Any]:
        """See `Family`."""
        return {
            **windows_of(config, "modernbert"),
            "rms_norm_eps": float(config.norm_eps),
            "local_attention": config.local_attention or 0,
        }

    def unsupported(self, config: Any, raw: Mapping[str, Any]) -> Iterator[str]:
        """See `Family`."""
        for key, value in _WITHOUT.items():
            if getattr(config, key) != value:
                yield f"{key}={getattr(config, key)!r} (ours is {value!r})"
        yield from unsupported_windows(config, "modernbert")
