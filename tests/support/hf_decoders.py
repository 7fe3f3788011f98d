"""Decoders of every family that is imported, of toy size with random weights, saved as Hugging Face folders."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    EuroBertConfig,
    EuroBertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    ModernBertForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    UltrabertConfig,
    UltrabertForMaskedLM,
)

from tests.support.text import sample_documents

TOKENS = 380
"""Ids of the tokenizer of these folders; it names no mask."""

_SHAPE: dict[str, Any] = {
    "vocab_size": TOKENS, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.15, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": None,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}

_MODERNBERT = {
    "num_hidden_layers": 4, "local_attention": 16, "global_attn_every_n_layers": 3, "global_rope_theta": 5_000.0,
    "local_rope_theta": 300.0, "pad_token_id": 0,
}  # fmt: skip

_ULTRABERT = {
    "num_hidden_layers": 4,
    "sliding_window": 8,
    "prediction_head_size": 48,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
    "pad_token_id": 0,
}

FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama 2": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 4, "rope_parameters": _LINEAR}),
    "llama 3": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": _LLAMA3}),
    "smollm": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None, "head_dim": 32}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"vocab_size": TOKENS + 57, "tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"vocab_size": TOKENS + 33, "head_dim": 32}),
    "eurobert": (EuroBertConfig, EuroBertForMaskedLM, {"mask_token_id": 5}),
    "modernbert": (ModernBertConfig, ModernBertForMaskedLM, _MODERNBERT),
    "modernbert-decoder": (ModernBertDecoderConfig, ModernBertDecoderForCausalLM, _MODERNBERT),
    "ultrabert": (UltrabertConfig, UltrabertForMaskedLM, _ULTRABERT),
}
"""Configuration, class and what differs from the common shape, by family."""


def save_decoder(family: str, folder: Path, *, max_shard_size: str = "5GB", **changes: Any) -> PreTrainedModel:
    """Write a model with random weights and a tokenizer without a mask token; returns the model, for comparison.

    Biases and norms are drawn too: at their usual first values, one that is left out would go unnoticed.
    """
    config, kind, differences = FAMILIES[family]
    torch.manual_seed(3)
    model: PreTrainedModel = kind(config(**(_SHAPE | differences | changes)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "proj.bias", "decoder.bias")):
                parameter.copy_(0.5 + torch.rand_like(parameter))
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    save_tokenizer(folder)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def save_tokenizer(folder: Path, *, specials: Sequence[str] = ("<s>", "</s>"), **names: str) -> None:
    """A byte-level BPE of `TOKENS` ids that begins every text with `<s>` (id 0) and names it, `</s>`, and `names`."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(sample_documents(200), trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", **names
    ).save_pretrained(folder)


def edit_json(path: Path, *, without: Sequence[str] = (), **changes: object) -> None:
    """Change keys of a JSON file, or leave them out; begin the file where there is none."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = {key: value for key, value in content.items() if key not in without}
    path.write_text(json.dumps(kept | changes), encoding="utf-8")


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a folder that has them in one file."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
