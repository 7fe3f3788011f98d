import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

from tests.support.hf_encoders import plain_tokenizer
from toolkit.model_folder import add_old_keys, card, save_tokenizer

SCALED = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("config", "old"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, {"rope_theta": 7.0}),
        ({"rope_parameters": {**SCALED, "rope_theta": 7.0}}, {"rope_theta": 7.0, "rope_scaling": SCALED}),
        (
            {
                "model_type": "modernbert",
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                "rope_parameters": {"full_attention": {"rope_theta": 7.0}, "sliding_attention": {"rope_theta": 3.0}},
            },
            {"global_rope_theta": 7.0, "local_rope_theta": 3.0, "global_attn_every_n_layers": 2},
        ),
        # Gemma 3's own class has other names.
        ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_theta": 7.0}}}, {}),
        ({"model_type": "bert"}, {}),
    ],
)
def test_old_keys_say_what_the_new_ones_say(tmp_path: Path, config: dict[str, Any], old: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    add_old_keys(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == config | old


def test_a_folder_without_a_configuration_gets_none(tmp_path: Path) -> None:
    add_old_keys(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_is_saved_without_what_was_last_padded_and_can_pad(tmp_path: Path) -> None:
    tokenizer = plain_tokenizer()
    tokenizer.pad_token = None
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    save_tokenizer(tmp_path, tokenizer)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert (content["truncation"], content["padding"]) == (None, None)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.pad_token, loaded.mask_token, len(loaded)) == ("<eos>", "<mask>", len(tokenizer))
    assert loaded("w1 w2 w3").input_ids == plain_tokenizer()("w1 w2 w3").input_ids


def test_a_base_model_is_one_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs/mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for base, named in (("someone/model", "someone/model"), ("runs/mine", None), ("/srv/a/b", None), ("model", None)):
        text = card(["A paragraph.\n"], title="t", library="transformers", pipeline="fill-mask", base=base, facts={})
        assert ModelCard(text).data.base_model == named
