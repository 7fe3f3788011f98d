"""Configuration and tokenizer of MODEL, an encoder that stock transformers loads."""

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from toolkit.core.console import console, quiet_transformers
from toolkit.core.errors import UserError
from toolkit.core.types import AttentionKind
from toolkit.finetuning.settings import Initialization
from toolkit.model_folder import Modules, check_not_adapter, read_config

_NO_LIMIT = 10**6


@dataclass(frozen=True)
class EncoderSource:
    """MODEL, opened: everything a task needs before weights are loaded.

    Attributes:
        config: its configuration, with bidirectional attention if requested.
        max_length: longest input in tokens that model, tokenizer and settings accept, special tokens included.
        accepted: names of the arguments that the encoder's forward takes.
        initialization: whether the encoder's weights are loaded or random.
        origin: folder that it was read from, or the checkpoint that it was made from; None for a hub model.
        modules: modules after the encoder in a SentenceTransformer, for retrieval.
    """

    model: str
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    accepted: frozenset[str]
    initialization: Initialization
    origin: Path | None = None
    modules: Modules | None = None


def open_source(
    model: str,
    *,
    initialization: Initialization = Initialization.PRETRAINED,
    max_length: int | None = None,
    origin: Path | None = None,
    attention: AttentionKind | None = AttentionKind.BIDIRECTIONAL,
) -> EncoderSource:
    """Open a local folder or a hub id: configuration and tokenizer.

    `max_length` defaults to the limit of model and tokenizer; `origin` is the checkpoint that `model` was made from.
    With `attention=None`, decoders are left as they are.
    """
    if not model:
        raise UserError(
            "MODEL is an empty string. Give a Hugging Face folder or hub id, or a run or checkpoint of this toolkit."
        )
    check_not_adapter(Path(model))
    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise UserError(
            f"{model} is not a model: it has neither checkpoints nor a config.json. Give a Hugging Face folder or "
            "hub id, or a run or checkpoint of this toolkit."
        )
    with model_loading(model):
        config = read_config(model)
        _check_encoder(model, config, attention)
        tokenizer = AutoTokenizer.from_pretrained(model, config=config, trust_remote_code=False)
        with torch.device("meta"):
            shape = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    _check_tokenizer(model, config, tokenizer)
    longest = longest_input(shape, tokenizer)
    accepted = frozenset(inspect.signature(shape.forward).parameters)
    origin = Path(model) if origin is None and Path(model).is_dir() else origin
    return EncoderSource(
        model, config, tokenizer, min(longest, max_length or longest), accepted, initialization, origin
    )


@contextmanager
def model_loading(model: str) -> Iterator[None]:
    """Turn errors that transformers raises about `model` into a `UserError`."""
    try:
        with quiet_transformers():
            yield
    except (ImportError, OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"could not load {model} as an encoder: it needs Python code that comes with it, and such code is not "
                "run here. Give an encoder of a kind that transformers has, such as BERT or EuroBERT."
            ) from error
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"could not load {model} as an encoder: {reason}\n"
            "Give a folder with config.json, weights and a tokenizer, or the id of such a model on the hub."
        ) from error


def _check_encoder(model: str, config: PretrainedConfig, attention: AttentionKind | None) -> None:
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{model} is an encoder-decoder ({kind}). Give an encoder, such as BERT or EuroBERT.")
    if attention is not None and is_decoder(config) and getattr(config, "is_causal", True) is not False:
        config.is_causal = False
        if not looks_ahead(config):
            raise UserError(
                f"{model} is a decoder ({kind}), and transformers cannot give it bidirectional attention; fine-tuning "
                "needs an encoder. Give one, or a run or checkpoint of this toolkit."
            )
        console().print(f"{model} is a decoder ({kind}): it is fine-tuned with bidirectional attention.")
    if not isinstance(getattr(config, "hidden_size", None), int):
        raise UserError(
            f"{model} ({kind}) is not a text encoder: its configuration has no hidden_size. Give an encoder, such as "
            "BERT or EuroBERT."
        )


def _check_tokenizer(model: str, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse the tokenizer that transformers makes without tokenizer files, which has only special tokens."""
    added, ids = tokenizer.get_added_vocab(), tokenizer.get_vocab()
    largest = max((number for token, number in ids.items() if token not in added), default=None)
    if ids.keys() <= set(tokenizer.all_special_tokens):
        raise UserError(
            f"{model} has no tokenizer: all of its {len(ids)} tokens are special ones. Put the files of its tokenizer "
            "there, such as tokenizer.json and tokenizer_config.json."
        )
    rows = getattr(config, "vocab_size", None)
    if largest is not None and rows is not None and largest >= rows:
        raise UserError(
            f"the tokenizer of {model} has ids up to {largest:,}, and the model embeds {rows:,} tokens. Give the "
            "tokenizer that the model was trained with."
        )


def is_decoder(config: PretrainedConfig) -> bool:
    """True if transformers has this model type only as a causal language model."""
    kind = config.model_type
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def looks_ahead(config: PretrainedConfig) -> bool:
    """True if tokens attend to later ones with `is_causal = False`, tried on a small random model of this type."""
    small = copy.deepcopy(config)
    small.is_causal = False
    small.num_hidden_layers, small.vocab_size, small.pad_token_id = 1, 8, 0
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:1]
    try:
        with torch.random.fork_rng(), torch.no_grad():
            network = AutoModel.from_config(small, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
            first = [network(torch.tensor([[1, 2, last]])).last_hidden_state[0, 0] for last in (3, 4)]
    except Exception:  # Model types with other shape settings, which this does not adapt.
        return False
    return not torch.equal(*first)


def longest_input(encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Longest input in tokens that both model and tokenizer accept."""
    limits = [int(tokenizer.model_max_length), getattr(encoder.config, "max_position_embeddings", None) or _NO_LIMIT]
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa's positions start after its padding position.
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    return min(limits)
