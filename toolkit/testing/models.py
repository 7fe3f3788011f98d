"""Tiny models for tests, and their Hugging Face twins."""

from typing import Any

import torch
from torch import Tensor
from transformers import (
    EuroBertConfig,
    EuroBertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from toolkit.core.types import AttentionKind
from toolkit.model import Encoder, ModelSettings, initialize_, model_settings

MODEL_OPTIONS: dict[str, dict[str, Any]] = {
    "biases": {"qkv_bias": True},
    "head norms, wide heads": {"qk_norm": True, "head_dim": 24, "tie_word_embeddings": True},
    "linear angles": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3 angles": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}
"""What decoders of other families add to the plain model, by name: changes of its settings."""


def tiny_settings(**changes: Any) -> ModelSettings:
    """The preset `test` (2 layers, 4 query heads on 2 key-value heads) with 97 entries in the vocabulary."""
    return model_settings("test", **({"vocab_size": 97} | changes))


def tiny_encoder(*, seed: int, dtype: torch.dtype = torch.float32, **changes: Any) -> Encoder:
    """A tiny initialised model. Its weights are drawn wide, so that attention is far from uniform.

    Biases and norms of heads are drawn too: as they start, leaving them out would go unnoticed.
    """
    encoder = Encoder(tiny_settings(**({"initializer_range": 0.2} | changes)))
    initialize_(encoder, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in encoder.named_parameters():
        if name.endswith((".bias", "q_norm.weight", "k_norm.weight")):
            parameter.data += torch.empty_like(parameter).uniform_(-0.5, 0.5, generator=generator)
    return encoder.to(dtype)


def hugging_face_twin(encoder: Encoder, attention: AttentionKind) -> PreTrainedModel:
    """The stock transformers class of that attention kind with the same weights, in evaluation mode."""
    settings = encoder.settings
    scaling = settings.rope_scaling
    angles = {"rope_type": "default"} if scaling is None else scaling.model_dump()
    shape = settings.model_dump(exclude={"rope_theta", "rope_scaling", "qkv_bias", "qk_norm"}) | {
        "rope_parameters": angles | {"rope_theta": settings.rope_theta},
        "head_dim": settings.head_size,
        "num_key_value_heads": settings.key_value_heads,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    # The constructors take it and their annotations do not know it.
    decoder: dict[str, Any] = shape | {"is_causal": attention is AttentionKind.CAUSAL}
    twin: PreTrainedModel
    if settings.qk_norm:
        twin = Qwen3ForCausalLM(Qwen3Config(**decoder))
    elif settings.qkv_bias:
        twin = Qwen2ForCausalLM(Qwen2Config(**decoder))
    elif attention is AttentionKind.CAUSAL:
        twin = LlamaForCausalLM(LlamaConfig(**shape))
    else:
        twin = EuroBertForMaskedLM(EuroBertConfig(**shape, mask_token_id=0))
    twin.load_state_dict(encoder.state_dict())
    twin.eval()  # type: ignore[no-untyped-call]
    return twin


def dense_visibility(segments_BS: Tensor, attention: AttentionKind) -> Tensor:
    """The slow definition of who sees whom: (B, S, S) bool, [b, i, j] is whether i sees j."""
    num_columns = segments_BS.shape[1]
    is_same = segments_BS[:, :, None] == segments_BS[:, None, :]
    is_real = (segments_BS != 0)[:, :, None]
    if attention is AttentionKind.CAUSAL:
        is_same = is_same & torch.ones(num_columns, num_columns, dtype=torch.bool).tril()
    return is_same & is_real
