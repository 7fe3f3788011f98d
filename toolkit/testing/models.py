"""Tiny models for tests, and their Hugging Face twins."""

from typing import Any

import torch
from torch import Tensor
from transformers import EuroBertConfig, EuroBertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from toolkit.core.words import AttentionKind
from toolkit.model import Encoder, ModelSettings, initialize_, model_settings

__all__ = ["dense_visibility", "hugging_face_twin", "tiny_encoder", "tiny_settings"]


def tiny_settings(**changes: Any) -> ModelSettings:
    """The preset `test` (2 layers, 4 query heads on 2 key-value heads) with 97 entries in the vocabulary."""
    return model_settings("test", **({"vocab_size": 97} | changes))


def tiny_encoder(*, seed: int, dtype: torch.dtype = torch.float32, **changes: Any) -> Encoder:
    """A tiny initialised model. Its weights are drawn wide, so that attention is far from uniform."""
    encoder = Encoder(tiny_settings(**({"initializer_range": 0.2} | changes)))
    initialize_(encoder, seed)
    return encoder.to(dtype)


def hugging_face_twin(encoder: Encoder, attention: AttentionKind) -> PreTrainedModel:
    """The stock transformers class of that attention kind with the same weights, in evaluation mode."""
    settings = encoder.settings
    shape = settings.model_dump(exclude={"rope_theta"}) | {
        "rope_parameters": {"rope_type": "default", "rope_theta": settings.rope_theta},
        "num_key_value_heads": settings.key_value_heads,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    twin: PreTrainedModel
    if attention is AttentionKind.CAUSAL:
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
