"""`config.json` as models on the hub have it, in their words and with their numbers, smaller in its sizes alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

import tokenization
from tests.support.hf_decoders import TOKENS, edit_json, edit_tensors, save_decoder
from toolkit.checkpoint import tensor_files
from toolkit.checkpoint.read import open_checkpoint
from toolkit.conversion import from_hf
from toolkit.conversion.families import describe
from toolkit.conversion.weights import HubTensors
from toolkit.core.errors import CheckpointError, UserError
from toolkit.model import ModelSettings
from toolkit.model.families import HUB_TYPES
from toolkit.model.parameters import parameter_counts
from toolkit.testing.tolerances import HUGGING_FACE_LOGITS

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
_COMMON: dict[str, Any] = {
    "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu", "initializer_range": 0.02,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True,
}  # fmt: skip
_LLAMA = _COMMON | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "pretraining_tp": 1}
_QWEN2 = _COMMON | {
    "architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 32768, "max_window_layers": 24,
    "model_type": "qwen2", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": True, "use_mrope": False, "use_sliding_window": False,
}  # fmt: skip
_MISTRAL = _COMMON | {
    "architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768, "model_type": "mistral",
    "rope_theta": 1000000.0, "sliding_window": None,
}  # fmt: skip
_LLAMA32_ANGLES = {
    "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip

# The published ids lie beyond a toy's vocabulary; a tied head has the pad's row too.
_MODERNBERT: dict[str, Any] = {
    "architectures": ["ModernBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
    "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0, "classifier_pooling": "mean",
    "cls_token_id": 0, "decoder_bias": True, "deterministic_flash_attn": False, "embedding_dropout": 0.0,
    "eos_token_id": 1, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "gradient_checkpointing": False,
    "hidden_activation": "gelu", "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "layer_norm_eps": 1e-5,
    "local_attention": 128, "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": False,
    "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-5, "pad_token_id": 1,
    "position_embedding_type": "absolute", "sep_token_id": 1, "tie_word_embeddings": True, "torch_dtype": "float32",
    "transformers_version": "4.47.0.dev0",
}  # fmt: skip
_MMBERT = _MODERNBERT | {
    "global_rope_theta": 160000, "local_rope_theta": 160000, "mask_token_id": 4, "position_embedding_type": "sans_pos",
}  # fmt: skip
_ETTIN = _MODERNBERT | {"local_rope_theta": 160000.0, "max_position_embeddings": 7999}
_ETTIN_DECODER = {key: value for key, value in _ETTIN.items() if key != "classifier_pooling"} | {
    "architectures": ["ModernBertDecoderForCausalLM"],
    "model_type": "modernbert-decoder",
    "use_cache": True,
}
_OLD_KEYS = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "torch_dtype")
_MODERNBERT_BY_5 = {key: value for key, value in _MODERNBERT.items() if key not in _OLD_KEYS} | {
    "dtype": "float32",
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_theta": 160000.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "transformers_version": "5.0.0",
}
_ULTRABERT = {key: value for key, value in _COMMON.items() if key != "use_cache"} | {
    "architectures": ["UltrabertForMaskedLM"],
    "attention_windows": [128, 128, 0, 128],
    "auto_map": {"AutoModelForMaskedLM": "modeling_ultrabert.UltrabertForMaskedLM"},
    "max_position_embeddings": 32768,
    "model_type": "ultrabert",
    "pad_token_id": 2,
    "prediction_head_size": 48,
    "rope_theta": [10000.0, 10000.0, 2560000.0, 10000.0],
}
_ANGLES_OF_BOTH = {"family": "modernbert", "rope_theta": 160_000.0, "local_rope_theta": 160_000.0}

# The toy that has the weights, the configuration, and what it becomes.
HUB: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Llama-2-7b": (
        "llama 3",
        _LLAMA | {"max_position_embeddings": 4096, "rope_scaling": None, "torch_dtype": "float16"},
        {"rope_theta": 1e4, "max_position_embeddings": 4096},
    ),
    "Llama-3.2-1B": (
        "smollm",
        _LLAMA
        | {
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "rope_scaling": _LLAMA32_ANGLES,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
        },
        {"rope_scaling": _LLAMA32_ANGLES, "rope_theta": 5e5, "tie_word_embeddings": True},
    ),
    "a linear stretch, as transformers 4.31 wrote it": (
        "llama 3",
        _LLAMA | {"max_position_embeddings": 4096, "rope_scaling": {"factor": 4.0, "type": "linear"}},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    "TinyLlama-1.1B": (
        "llama 3",
        _LLAMA | {"max_position_embeddings": 2048, "rope_scaling": None, "rope_theta": 10000.0},
        {"rope_theta": 1e4, "num_key_value_heads": 2},
    ),
    "SmolLM2-135M": (
        "smollm",
        _LLAMA
        | {
            "initializer_range": 0.041666666666666664,
            "is_llama_config": True,
            "max_position_embeddings": 8192,
            "rope_interleaved": False,
            "rope_scaling": None,
            "rope_theta": 100000,
            "tie_word_embeddings": True,
        },
        {"rope_theta": 1e5, "initializer_range": 0.041666666666666664},
    ),
    "Mistral-7B-v0.3": ("mistral", _MISTRAL, {"rope_theta": 1e6, "head_dim": 32}),
    "Qwen2.5-0.5B": ("qwen2", _QWEN2, {"qkv_bias": True, "rms_norm_eps": 1e-6, "vocab_size": TOKENS + 57}),
    "Qwen3-0.6B": (
        "qwen3",
        _COMMON | {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "max_position_embeddings": 40960,
            "max_window_layers": 28, "model_type": "qwen3", "rope_scaling": None, "rope_theta": 1000000,
            "sliding_window": None, "use_sliding_window": False},
        {"qk_norm": True, "head_dim": 32, "rope_theta": 1e6},
    ),
    "EuroBERT-210m": (
        "eurobert",
        _COMMON
        | {
            "architectures": ["EuroBertForMaskedLM"],
            "auto_map": {
                "AutoConfig": "configuration_eurobert.EuroBertConfig",
                "AutoModelForMaskedLM": "modeling_eurobert.EuroBertForMaskedLM",
            },
            "bos_token": "<|begin_of_text|>",
            "clf_pooling": "late",
            "hidden_dropout": 0.0,
            "mask_token": "<|mask|>",
            "mask_token_id": 2,
            "max_position_embeddings": 8192,
            "mlp_bias": False,
            "model_type": "eurobert",
            "pad_token_id": 1,
            "rope_scaling": None,
            "rope_theta": 250000,
        },
        {"rope_theta": 2.5e5, "max_position_embeddings": 8192},
    ),
    "ModernBERT-base": (
        "modernbert",
        _MODERNBERT,
        {"family": "modernbert", "rope_theta": 160_000.0, "local_rope_theta": 10_000.0, "local_attention": 128},
    ),
    "ModernBERT-base, as transformers 5 writes it": (
        "modernbert",
        _MODERNBERT_BY_5,
        {"rope_theta": 160_000.0, "local_rope_theta": 10_000.0, "global_attn_every_n_layers": 3},
    ),
    "mmBERT-base": ("modernbert", _MMBERT, _ANGLES_OF_BOTH),
    "ettin-encoder-150m": ("modernbert", _ETTIN, _ANGLES_OF_BOTH | {"max_position_embeddings": 7999}),
    "ettin-decoder-150m": ("modernbert-decoder", _ETTIN_DECODER, _ANGLES_OF_BOTH),
    "UltraBERT before transformers had it": (
        "ultrabert",
        _ULTRABERT,
        {"family": "ultrabert", "local_attention": 256, "global_attn_every_n_layers": 3}
        | {"rope_theta": 2.56e6, "local_rope_theta": 1e4, "prediction_head_size": 48},
    ),
    "ettin-enc-from-dec-150m": ("modernbert", _ETTIN | {"local_attention": 64}, {"local_attention": 64}),
}  # fmt: skip

# Millions of parameters as published, vocabulary, width, feed-forward width, layers and heads.
_PUBLISHED: dict[str, tuple[dict[str, Any], int, tuple[int, int, int, int, int]]] = {
    "ModernBERT-base": (_MODERNBERT, 149, (50_368, 768, 1152, 22, 12)),
    "ModernBERT-large": (_MODERNBERT, 395, (50_368, 1024, 2624, 28, 16)),
    "mmBERT-small": (_MMBERT, 140, (256_000, 384, 1152, 22, 6)),
    "mmBERT-base": (_MMBERT, 307, (256_000, 768, 1152, 22, 12)),
    "ettin-encoder-17m": (_ETTIN, 17, (50_368, 256, 384, 7, 4)),
    "ettin-encoder-68m": (_ETTIN, 68, (50_368, 512, 768, 19, 8)),
    "ettin-encoder-1b": (_ETTIN, 1028, (50_368, 1792, 3840, 28, 28)),
    "ettin-decoder-32m": (_ETTIN_DECODER, 32, (50_368, 384, 576, 10, 6)),
    "ettin-decoder-400m": (_ETTIN_DECODER, 395, (50_368, 1024, 2624, 28, 16)),
}


def _write(folder: Path, config: dict[str, Any]) -> None:
    """Put a configuration of the hub beside a toy's weights, with the toy's sizes."""
    path = folder / "config.json"
    toy = json.loads(path.read_text())
    path.write_text(json.dumps({key: toy[key] for key in _SIZES if key in toy} | config))


@pytest.mark.parametrize("model", HUB)
def test_a_configuration_of_the_hub_is_read(model: str, tmp_path: Path) -> None:
    family, config, expected = HUB[model]
    save_decoder(family, tmp_path / "model")
    _write(tmp_path / "model", config)
    report = from_hf(tmp_path / "model", tmp_path / "out")
    assert report.max_difference <= HUGGING_FACE_LOGITS
    settings = open_checkpoint(tmp_path / "out").manifest.settings["model"]
    assert ModelSettings(**settings | expected) == report.settings


@pytest.mark.parametrize("model", _PUBLISHED)
def test_the_tensors_of_a_published_shape_are_those_of_the_stock_class(model: str, tmp_path: Path) -> None:
    config, millions, shape = _PUBLISHED[model]
    sizes = dict(zip(_SIZES, shape, strict=False))
    (tmp_path / "config.json").write_text(json.dumps(config | sizes))
    described = describe(tmp_path, model)
    tensors = HubTensors(described.settings, HUB_TYPES[described.family].types[described.family])
    with torch.device("meta"):
        auto: Any = AutoModelForCausalLM if described.family.endswith("decoder") else AutoModelForMaskedLM
        stock = auto.from_config(AutoConfig.from_pretrained(tmp_path))
    assert tensors.shapes == {name: tuple(parameter.shape) for name, parameter in stock.named_parameters()}
    assert parameter_counts(described.settings).total / 1e6 == pytest.approx(millions, rel=0.015)


def test_a_head_stored_beside_the_embedding_and_half_precision_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published files of ModernBERT are fp32 and have `decoder.weight`; others have neither."""
    save_decoder("modernbert", tmp_path / "model")
    head, embedding = "decoder.weight", "model.embeddings.tok_embeddings.weight"

    def halve(tensors: dict[str, torch.Tensor]) -> None:
        tensors[head] = tensors[embedding].clone()
        tensors.update({name: tensor.bfloat16() for name, tensor in tensors.items()})

    edit_tensors(tmp_path / "model", halve)
    report = from_hf(tmp_path / "model", tmp_path / "out")
    assert f"{head} is stored beside {embedding}, equals it, and is left out" in report.changes
    assert report.max_difference <= HUGGING_FACE_LOGITS
    # Read in several blocks of rows, of which the last alone differs.
    monkeypatch.setattr(tensor_files, "_BLOCK_BYTES", 4096)
    edit_tensors(tmp_path / "model", lambda tensors: tensors[head][-1].mul_(2))
    with pytest.raises(CheckpointError, match=f"ties {head} to {embedding}, but the two differ"):
        from_hf(tmp_path / "model", tmp_path / "again")


def test_a_window_of_the_hub_is_refused(tmp_path: Path) -> None:
    save_decoder("mistral", tmp_path / "model")
    _write(tmp_path / "model", _MISTRAL | {"sliding_window": 4096, "rope_theta": 10000.0})
    with pytest.raises(UserError, match=r"sliding-window attention \(sliding_window=4,096\)"):
        from_hf(tmp_path / "model", tmp_path / "out")


_PER_LAYER = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
_CROSSED = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 128}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "some layers slide": ("qwen2",
        {"use_sliding_window": True, "sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]},
        "sliding-window attention"),
    "soft-caps": ("llama 3", {"final_logit_softcapping": 30.0}, "logit soft-caps (final_logit_softcapping=30.0)"),
    "dynamic": ("llama 3", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
        "rotary angles of type 'dynamic'"),
    "activation": ("llama 3", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
    "biases": ("llama 3", {"mlp_bias": True}, "biases in the feed-forward layers (mlp_bias=true)"),
    "all parts of another family": ("llama 3", {"model_type": "gemma2", "attn_logit_softcapping": 50.0},
        "attn_logit_softcapping=50.0"),
    "layers in chunks": ("llama 3", {"layer_types": ["chunked_attention"] * 2}, "layer_types: chunked_attention"),
    "linear layers": ("llama 3", {"layer_types": ["linear_attention"] * 2}, "layer_types: linear_attention"),
    "layers that slide": ("llama 3", {"layer_types": ["sliding_attention"] * 2}, "layer_types: sliding_attention"),
    "a window without a width": ("qwen3", {"layer_types": ["sliding_attention", "full_attention"]},
        "layer_types: sliding_attention"),
    "angles by layer": ("qwen3", {"rope_parameters": _PER_LAYER}, "rope_parameters of full_attention"),
    "no base": ("llama 3", {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
        "rope_theta: expected a number, got None"),
    "a factor in quotes": ("llama 3", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": "2"}},
        "rope_scaling.factor: expected a number"),
    "crossed bands": ("llama 3",
        {"rope_parameters": _CROSSED | {"rope_theta": 1e4, "low_freq_factor": 4.0, "high_freq_factor": 1.0}},
        "high_freq_factor=1.0 is not above low_freq_factor=4.0"),
    "biases of ModernBERT": ("modernbert", {"norm_bias": True, "mlp_bias": True},
        "norm_bias=True (ours is False)\n  mlp_bias=True (ours is False)"),
    "a head without a bias": ("modernbert-decoder", {"decoder_bias": False}, "decoder_bias=False (ours is True)"),
    "another activation": ("modernbert", {"hidden_activation": "silu"}, "hidden_activation='silu' (ours is 'gelu')"),
    "the last of each three without a window": ("modernbert",
        {"layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]},
        "in another order than one without every so many (layer_types)"),
    "the first of each three without a window": ("ultrabert",
        {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]},
        "in another order than one without every so many (layer_types)"),
    "windows of two widths": ("ultrabert", {"attention_windows": [64, 128, 0, 64]},
        "windows that differ from layer to layer (attention_windows: 64, 128)"),
    "bases of two values": ("ultrabert",
        {"rope_parameters": None, "layer_types": None, "attention_windows": [8, 8, 0, 8],
            "rope_theta": [1e4, 2e4, 5e5, 1e4]},
        "bases of angles that differ from layer to layer (rope_theta of sliding_attention: 10,000.0, 20,000.0)"),
    "UltraBERT with one base": ("ultrabert", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "one base of angles for all layers (rope_parameters)"),
    "UltraBERT with another activation": ("ultrabert", {"hidden_act": "gelu"}, "hidden_act='gelu' (ours is silu)"),
    "mmBERT stretched to 32k": ("modernbert",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}},
        "rotary angles of type 'yarn' (rope_parameters of full_attention)"),
    "a base that the converter of ModernBERT's repository left out": ("modernbert",
        {"rope_parameters": None, "global_rope_theta": 1e4, "local_rope_theta": None},
        "no base of the angles of sliding_attention, where transformers 4 took global_rope_theta: write that"),
    "a window of nothing": ("modernbert-decoder", {"local_attention": None}, "local_attention: expected at least 2"),
    "a family that is no word": ("llama 3", {"model_type": ["llama"]}, "model_type=['llama'] (supported: llama"),
    "code alone": ("llama 3", {"model_type": "ownmodel", "auto_map": {"AutoModel": "modeling_own.OwnModel"}},
        "code of its own (auto_map), which is never run"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_configuration_asks_for_beyond_our_model_is_named(case: str, tmp_path: Path) -> None:
    family, changes, message = REFUSED[case]
    save_decoder(family, tmp_path / "model")
    edit_json(tmp_path / "model" / "config.json", **changes)
    with pytest.raises(UserError) as caught:
        from_hf(tmp_path / "model", tmp_path / "out")
    assert message in str(caught.value)
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_configuration_of_brackets_is_no_bug(tmp_path: Path) -> None:
    save_decoder("llama 3", tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("[" * 200_000)
    with pytest.raises(UserError, match=r"cannot be read as JSON: .*recursion"):
        from_hf(tmp_path / "model", tmp_path / "out")


def test_code_beside_a_model_that_is_read_without_it_is_told(tmp_path: Path) -> None:
    save_decoder("llama 3", tmp_path / "model")
    edit_json(tmp_path / "model" / "config.json", auto_map={"AutoModelForCausalLM": "modeling_fast.FastForCausalLM"})
    report = from_hf(tmp_path / "model", tmp_path / "out")
    assert "code of its own (auto_map) is not run: read as transformers' own llama" in report.changes


def test_tokens_that_no_file_names_are_not_taken_from_the_defaults_of_a_family(tmp_path: Path) -> None:
    """transformers' Llama ends texts with id 2 where config.json says nothing; here that is an exclamation mark."""
    save_decoder("llama 3", tmp_path / "model")
    edit_json(tmp_path / "model" / "config.json", without=("bos_token_id", "eos_token_id"))
    edit_json(tmp_path / "model" / "tokenizer_config.json", without=("bos_token", "eos_token"))
    report = from_hf(tmp_path / "model", tmp_path / "out")
    assert not [change for change in report.changes if "which config.json gives" in change]
    special_ids = tokenization.load(tmp_path / "out").special_ids
    assert (special_ids["bos"], special_ids["eos"]) == (None, None)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").config.eos_token_id == 2
