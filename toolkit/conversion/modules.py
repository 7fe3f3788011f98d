"""Files for sentence-transformers next to a Hugging Face encoder: the encoder, then mean pooling."""

import json
from pathlib import Path

_POOLING = "1_Pooling"


def write_modules(folder: Path, *, width: int, longest: int) -> None:
    """Write `modules.json` and the settings of the two modules.

    Args:
        folder: holds the exported encoder.
        width: D, of an embedding.
        longest: positions of an input.
    """
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": _POOLING, "type": "sentence_transformers.models.Pooling"},
    ]
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True, "include_prompt": True}
    whole: dict[str, object] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / _POOLING).mkdir()
    for name, content in (
        ("modules.json", modules),
        ("sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False}),
        ("config_sentence_transformers.json", whole),
        (f"{_POOLING}/config.json", pooling),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
