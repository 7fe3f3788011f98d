"""Loading of MODEL: an encoder that stock transformers loads, and its tokenizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from toolkit.core.console import quiet_transformers
from toolkit.core.errors import UserError

_NO_LIMIT = 10**6


def open_source(model: str) -> tuple[PretrainedConfig, PreTrainedTokenizerBase]:
    """Configuration and tokenizer of a local folder or a hub id.

    Raises:
        UserError: it is not there, has no tokenizer, or is not an encoder.
    """
    if not model:
        raise UserError(
            "MODEL is an empty string. Give a Hugging Face folder or hub id, or a run or checkpoint of this toolkit."
        )
    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise UserError(
            f"{model} is not a model: it has neither checkpoints nor a config.json. Give a Hugging Face folder or "
            "hub id, or a run or checkpoint of this toolkit."
        )
    with model_loading(model):
        config = AutoConfig.from_pretrained(model)
        _check_encoder(model, config)
        tokenizer = AutoTokenizer.from_pretrained(model)
    return config, tokenizer


@contextmanager
def model_loading(model: str) -> Iterator[None]:
    """Turn what transformers raises about `model` into one message."""
    try:
        with quiet_transformers():
            yield
    except (ImportError, OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"could not load {model} as an encoder: {reason}\n"
            "Give a folder with config.json, weights and a tokenizer, or the id of such a model on the hub."
        ) from error


def _check_encoder(model: str, config: PretrainedConfig) -> None:
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{model} is an encoder-decoder ({kind}). Give an encoder, such as BERT or EuroBERT.")
    is_decoder_only = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    # A decoder exported with bidirectional attention has is_causal = false in its configuration.
    if is_decoder_only and getattr(config, "is_causal", True) is not False:
        raise UserError(
            f"{model} is a decoder ({kind}) with causal attention; fine-tuning needs an encoder. Export a run or a "
            "checkpoint as one with: toolkit convert --to-hf CHECKPOINT OUT"
        )
    if not isinstance(getattr(config, "hidden_size", None), int):
        raise UserError(
            f"{model} ({kind}) is not a text encoder: its configuration has no hidden_size. Give an encoder, such as "
            "BERT or EuroBERT."
        )


def longest_input(encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Longest input in tokens that both model and tokenizer accept."""
    limits = [int(tokenizer.model_max_length), getattr(encoder.config, "max_position_embeddings", None) or _NO_LIMIT]
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa counts positions from the one after its padding position.
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    return min(limits)
