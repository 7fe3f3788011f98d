"""Tiny models for tests, and their Hugging Face twins."""

import sys
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel, masking_utils

from toolkit.conversion.weights import HubTensors
from toolkit.core.types import AttentionKind
from toolkit.model import Encoder, ModelSettings, model_settings
from toolkit.model.families import SHARED_FIELDS, HubForm, family_of, hub_type
from toolkit.model.initialization import initialize_

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
    "modernbert": {
        "family": "modernbert",
        "num_key_value_heads": None,
        "tie_word_embeddings": True,
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
        "rope_theta": 250.0,
        "local_rope_theta": 60.0,
    },
    "ultrabert": {
        "family": "ultrabert",
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
        "prediction_head_size": 48,
        "rope_theta": 250.0,
        "local_rope_theta": 60.0,
    },
}
"""Changes to the plain model's settings, by name: additions of other families' decoders, and other families."""


def tiny_settings(**changes: Any) -> ModelSettings:
    """The preset `test` (2 layers, 4 query heads on 2 key-value heads) with 97 entries in the vocabulary."""
    return model_settings("test", **({"vocab_size": 97} | changes))


def tiny_encoder(*, seed: int, dtype: torch.dtype = torch.float32, **changes: Any) -> Encoder:
    """A tiny initialized model. Its weights have a large spread, so that attention is far from uniform.

    Biases and QK norms are drawn too: at their initial values, leaving them out would go unnoticed.
    """
    encoder = Encoder(tiny_settings(**({"initializer_range": 0.2} | changes)))
    initialize_(encoder, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in encoder.named_parameters():
        if name.endswith((".bias", "q_norm.weight", "k_norm.weight")):
            parameter.data += torch.empty_like(parameter).uniform_(-0.5, 0.5, generator=generator)
    return encoder.to(dtype)


def hugging_face_twin(encoder: Encoder, attention: AttentionKind) -> PreTrainedModel:
    """Model of the stock transformers class of that attention kind with the same weights, in evaluation mode.

    If a family has no decoder, it is the encoder's class with the masks that transformers makes for decoders.
    """
    settings = encoder.settings
    hub = _hub_form(settings, attention)
    shape = {key: getattr(settings, key) for key in SHARED_FIELDS}
    ids = family_of(settings).special_ids(
        dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0), hub.model_type
    )
    config = AutoConfig.for_model(hub.model_type, **shape, **ids, **hub.config, mask_token_id=0)
    twin: PreTrainedModel = getattr(transformers, hub.class_name)(config)
    weights, tensors = encoder.state_dict(), hub_tensors(settings, attention)
    found = {theirs: torch.cat([weights[name] for name in ours]) for theirs, ours in tensors.parts.items()}
    missing, unexpected = twin.load_state_dict(found, strict=False)
    # Only a tied head and the classes' additional output biases may be missing.
    assert not unexpected
    assert all(name == tensors.head or name.endswith("o_proj.bias") for name in missing)
    # Our model trains the padding token's row too.
    twin.get_input_embeddings().padding_idx = None  # type: ignore[assignment]
    if attention is AttentionKind.CAUSAL and family_of(settings).decoder is None:
        _mask_as_decoder_(twin)
    twin.eval()  # type: ignore[no-untyped-call]
    return twin


def _mask_as_decoder_(twin: PreTrainedModel) -> None:
    """Let an encoder attend only backwards, and as far as a decoder with its `sliding_window`."""
    options: dict[str, Any] = {"past_key_values": None, "allow_is_causal_skip": False}
    masks: dict[str, Any] = {
        "create_bidirectional_mask": partial(masking_utils.create_causal_mask, **options),
        "create_bidirectional_sliding_window_mask": partial(masking_utils.create_sliding_window_causal_mask, **options),
    }
    twin.forward = patch.multiple(sys.modules[type(twin).__module__], **masks)(twin.forward)


def _hub_form(settings: ModelSettings, attention: AttentionKind) -> HubForm:
    """The stock class of an attention kind; the bidirectional one if a family has no decoder."""
    family = family_of(settings)
    return family.hub_form(settings, AttentionKind.BIDIRECTIONAL if family.decoder is None else attention, None)


def hub_tensors(settings: ModelSettings, attention: AttentionKind) -> HubTensors:
    """Tensors of the stock class of that attention kind."""
    return HubTensors(settings, hub_type(_hub_form(settings, attention).model_type))


def dense_visibility(segments_BS: Tensor, attention: AttentionKind, window: int | None = None) -> Tensor:
    """Slow reference for attention masks: (B, S, S) bool, [b, i, j] is whether i attends to j."""
    num_columns = segments_BS.shape[1]
    is_same = segments_BS[:, :, None] == segments_BS[:, None, :]
    is_real = (segments_BS != 0)[:, :, None]
    if attention is AttentionKind.CAUSAL:
        is_same = is_same & torch.ones(num_columns, num_columns, dtype=torch.bool).tril()
    if window is not None:
        columns = torch.arange(num_columns)
        is_same = is_same & ((columns[:, None] - columns).abs() <= window)
    return is_same & is_real
