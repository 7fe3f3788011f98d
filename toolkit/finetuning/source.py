"""What MODEL may be: an encoder that stock transformers loads, with its tokenizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR
from pathlib import Path

from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.utils import logging

from toolkit.core.errors import UserError

_NO_LIMIT = 10**6


def open_source(model: str) -> tuple[PretrainedConfig, PreTrainedTokenizerBase]:
    """Configuration and tokenizer of a local folder or a hub id.

    Raises:
        UserError: it is not there, has no tokenizer, or is not an encoder.
    """
    if not model:
        raise UserError(
            "MODEL is an empty text. Give a Hugging Face folder or hub id, or a run or checkpoint of yours."
        )
    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise UserError(
            f"{model} is no run and no checkpoint of yours, and holds no config.json as a Hugging Face model does. "
            "Give one of the three, or the id of an encoder on the hub."
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
        with hushed():
            yield
    except (ImportError, OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"{model} cannot be loaded as an encoder: {reason}\n"
            "MODEL is a folder with config.json, weights and a tokenizer, or the id of such a model on the hub."
        ) from error


@contextmanager
def hushed() -> Iterator[None]:
    """Keep transformers' progress bars and advice off the screen for a while."""
    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(ERROR)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _check_encoder(model: str, config: PretrainedConfig) -> None:
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{model} is an encoder-decoder ({kind}). Give an encoder, such as BERT or EuroBERT.")
    is_decoder_only = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    # A decoder exported for bidirectional use says so in its configuration.
    if is_decoder_only and getattr(config, "is_causal", True) is not False:
        raise UserError(
            f"{model} is a decoder ({kind}): its tokens see only what stands before them. Fine-tuning takes an "
            "encoder; a run or a checkpoint becomes one with: toolkit convert --to-hf CHECKPOINT OUT"
        )
    if not isinstance(getattr(config, "hidden_size", None), int):
        raise UserError(
            f"{model} ({kind}) is no text encoder: its configuration has no hidden_size. Give one, such as BERT or "
            "EuroBERT."
        )


def longest_input(encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens that model and tokenizer both take in one input."""
    limits = [int(tokenizer.model_max_length), getattr(encoder.config, "max_position_embeddings", None) or _NO_LIMIT]
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa counts positions from the one after its padding position.
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    return min(limits)
