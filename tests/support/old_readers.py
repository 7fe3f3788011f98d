"""Rules by which transformers 4 and sentence-transformers 2 to 5 read a model folder, from its files alone."""

import json
from pathlib import Path
from typing import Any


def check_by_old_rules(folder: Path) -> None:
    """Assert that older readers take a folder, and take it for what it is."""
    config, tokenizer = _read(folder / "config.json"), _read(folder / "tokenizer_config.json")
    # transformers 4 knows no TokenizersBackend, and its other classes would make a tokenizer.json anew.
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert isinstance(tokenizer["model_max_length"], int)
    assert not isinstance(tokenizer.get("extra_special_tokens", {}), list)
    added = {token["content"] for token in _read(folder / "tokenizer.json")["added_tokens"]}
    named = {value for key, value in tokenizer.items() if key.endswith("_token")}
    # What is not there would be added, with a new id.
    assert named | {*tokenizer.get("additional_special_tokens", ())} <= added
    assert _read(folder / "tokenizer.json")["truncation"] is None
    assert _read(folder / "tokenizer.json")["padding"] is None
    angles = config.get("rope_parameters", {})
    if "rope_theta" in angles:
        assert config["rope_theta"] == angles["rope_theta"]
    # They know no UltraBERT.
    if "full_attention" in angles and config["model_type"] != "ultrabert":
        assert config["global_rope_theta"] == angles["full_attention"]["rope_theta"]
        assert config["local_rope_theta"] == angles["sliding_attention"]["rope_theta"]
        every = config["global_attn_every_n_layers"]
        kinds = [
            "sliding_attention" if layer % every else "full_attention" for layer in range(len(config["layer_types"]))
        ]
        assert kinds == config["layer_types"]
    if (folder / "head.safetensors").exists():
        assert "id2label" not in config
    if (folder / "modules.json").exists():
        modules: Any = _read(folder / "modules.json")
        parts = [(module["path"], module["type"].removeprefix("sentence_transformers.models.")) for module in modules]
        assert parts[:2] == [("", "Transformer"), ("1_Pooling", "Pooling")]
        assert parts[2:] in ([], [("2_Normalize", "Normalize")])
        assert all((folder / path).is_dir() for path, _ in parts)
        pooling = _read(folder / "1_Pooling/config.json")
        assert pooling["word_embedding_dimension"] == config["hidden_size"]
        assert "pooling_mode" not in pooling
        assert any(value is True for key, value in pooling.items() if key.startswith("pooling_mode_"))
        assert _read(folder / "sentence_bert_config.json")["max_seq_length"] <= tokenizer["model_max_length"]


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content
