"""The tokenizer of a model that is imported: what is taken, what is told, and what stands beside it for nothing."""

import json
import logging
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import AutoTokenizer

import tokenization
from tests.support.hf_decoders import TOKENS, edit_json, save_decoder, save_tokenizer
from tests.support.text import sample_documents
from tokenization.comparison import transformers_differences
from toolkit.checkpoint.read import open_checkpoint
from toolkit.conversion import folders, from_hf, to_hf
from toolkit.core.errors import CheckpointError, UserError


def _only(changes: tuple[str, ...], word: str) -> str:
    (found,) = (change for change in changes if change.startswith(word))
    return found


@pytest.mark.parametrize("policy", ["", "append", "RESERVED", "7"])
def test_an_unknown_policy_is_refused_with_the_known_ones(tmp_path: Path, policy: str) -> None:
    save_decoder("llama 3", tmp_path / "model")
    with pytest.raises(UserError, match=f"expected auto, reserved, mean, id:N or token:TEXT, got '{policy}'"):
        from_hf(tmp_path / "model", tmp_path / "out", mask_token=policy)


@pytest.mark.parametrize(
    ("file", "changes", "told"),
    [
        (
            "generation_config.json",
            {"eos_token_id": [1, 8, 9]},
            "eos: generation_config.json also ends texts with id 8, 9, which exports do not know",
        ),
        ("tokenizer_config.json", {"chat_template": "{{ messages }}"}, "the chat template is left out"),
        ("chat_template.jinja", {}, "the chat template is left out"),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}},
            "AutoTokenizer does not load it, so ids were not compared",
        ),
    ],
)
def test_what_is_left_out_or_not_looked_at_is_told(
    tmp_path: Path, file: str, changes: dict[str, object], told: str
) -> None:
    """With an ordinary token as the mask, which comes with a warning."""
    save_decoder("llama 3", tmp_path / "model")
    edit_json(tmp_path / "model" / file, **changes)
    found = from_hf(tmp_path / "model", tmp_path / "out", mask_token="token:a").changes
    assert told in (found if told.startswith(("eos", "the chat")) else _only(found, "tokenizer"))
    assert "a is an ordinary token: exported tokenizers read every a in a text as the mask" in found


def test_the_mask_of_config_json_is_taken_where_the_tokenizer_names_none(tmp_path: Path) -> None:
    save_decoder("eurobert", tmp_path / "model", mask_token_id=2)
    save_tokenizer(tmp_path / "model", specials=("<s>", "</s>", "<hide>"))
    report = from_hf(tmp_path / "model", tmp_path / "out")
    assert _only(report.changes, "mask") == "mask: <hide> (id 2), which config.json gives"
    assert (tokenization.load(tmp_path / "out").mask.id, report.settings.vocab_size) == (2, TOKENS)
    assert from_hf(tmp_path / "model", tmp_path / "other", mask_token="mean").settings.vocab_size == 384


def test_a_model_named_by_a_dot_is_known_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_decoder("llama 3", tmp_path / "model")
    monkeypatch.chdir(tmp_path / "model")
    from_hf(".", tmp_path / "out")
    assert open_checkpoint(tmp_path / "out").manifest.origin["model"] == "model"


def test_a_token_without_a_row_is_named(tmp_path: Path) -> None:
    save_decoder("llama 3", tmp_path / "model")
    edit_json(tmp_path / "model" / "tokenizer_config.json", pad_token="<fill>")
    with pytest.raises(CheckpointError, match=r"ids up to 380 \(id 380 is '<fill>'\)"):
        from_hf(tmp_path / "model", tmp_path / "out")


def _as_sentencepiece(folder: Path) -> None:
    """Put the tokenizer of Llama 2 in a folder, as its first releases had it: a SentencePiece model and a class."""
    (folder / "tokenizer.json").unlink()
    (folder / "text").write_text("\n".join(sample_documents(200)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=TOKENS,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"} | names))


def test_ids_that_transformers_would_give_otherwise_are_told(tmp_path: Path) -> None:
    """The class adds a token in front of every text, of which the SentencePiece model says nothing."""
    save_decoder("llama 3", tmp_path / "model", bos_token_id=1, eos_token_id=2)
    _as_sentencepiece(tmp_path / "model")
    told = _only(from_hf(tmp_path / "model", tmp_path / "out").changes, "tokenizer")
    assert told.startswith(
        "tokenizer: AutoTokenizer gives other ids for 11 of 11 texts, for example 'Call me Ishmael.': [1, "
    )

    AutoTokenizer.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "model")
    changes = from_hf(tmp_path / "model", tmp_path / "other").changes
    assert not [change for change in changes if change.startswith("tokenizer")]
    theirs, ours = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("model", "other/tokenizer"))
    assert theirs("The river")["input_ids"] == ours("The river")["input_ids"]


def test_special_ids_that_transformers_would_give_otherwise_are_told(tmp_path: Path) -> None:
    """Sentences cannot show it: no text holds these tokens."""
    save_decoder("llama 3", tmp_path / "model")
    backend = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in backend["added_tokens"]}
    differences = transformers_differences(
        tmp_path / "model",
        encode=AutoTokenizer.from_pretrained(tmp_path / "model").encode,
        ids={**ids, "</s>": 7},
    )
    assert differences == [f"AutoTokenizer gives the eos token </s> the id {ids['</s>']}, and here it is 7"]


def test_added_tokens_of_a_folder_without_tokenizer_json_keep_their_rows(tmp_path: Path) -> None:
    """As in fine-tuned Llama folders: the pad row is the trained one, and the mask is not taken for it."""
    save_decoder("llama 3", tmp_path / "model", bos_token_id=1, eos_token_id=2, vocab_size=TOKENS + 2)
    _as_sentencepiece(tmp_path / "model")
    (tmp_path / "model" / "added_tokens.json").write_text(json.dumps({"[PAD]": TOKENS, "<|mask|>": TOKENS + 1}))
    edit_json(tmp_path / "model" / "tokenizer_config.json", pad_token="[PAD]", mask_token="<|mask|>")
    report = from_hf(tmp_path / "model", tmp_path / "out")

    manifest = open_checkpoint(tmp_path / "out").manifest
    assert (manifest.vocabulary.pad_id, manifest.vocabulary.mask_id) == (TOKENS, TOKENS + 1)
    assert not [change for change in report.changes if change.startswith("embedding")]


def test_texts_that_are_longer_than_the_model_takes_are_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are compared on whole texts; transformers would warn of errors in a model that never gets them."""
    save_decoder("llama 3", tmp_path / "model")
    edit_json(tmp_path / "model" / "tokenizer_config.json", model_max_length=64)
    said: list[str] = []
    monkeypatch.setattr(
        logging.getLogger("transformers.tokenization_utils_base"), "warning", lambda text, *_: said.append(text)
    )
    from_hf(tmp_path / "model", tmp_path / "out")
    assert said == []


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_a_mask_takes_the_blank_before_it_along_in_an_encoder_alone(tmp_path: Path, kind: str) -> None:
    """Blanks belong to the word behind them, so that in training the mask stood for both."""
    save_decoder("llama 3", tmp_path / "model", bos_token_id=1 if kind == "sentencepiece" else 0)
    if kind == "sentencepiece":
        _as_sentencepiece(tmp_path / "model")
        AutoTokenizer.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "model")
    from_hf(tmp_path / "model", tmp_path / "imported")
    for form in ("bidirectional", "causal"):
        to_hf(tmp_path / "imported", tmp_path / form, form=form)
    encoder, decoder = (AutoTokenizer.from_pretrained(tmp_path / form) for form in ("bidirectional", "causal"))

    def around(tokenizer: Any) -> list[str]:
        tokens: list[str] = tokenizer.convert_ids_to_tokens(tokenizer("The <mask> river")["input_ids"])
        place = tokens.index("<mask>")
        return tokens[place - 1 : place + 1]

    assert around(encoder)[0].endswith("The")
    assert around(decoder)[0] in ("Ġ", "▁")


def test_every_file_that_is_read_is_fetched_from_the_hub() -> None:
    weights = ["model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"]
    words = ["tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json"]
    others = ["config.json", "generation_config.json", "special_tokens_map.json"]
    assert [
        name for name in weights + words + others if not any(fnmatch(name, pattern) for pattern in folders._FILES)
    ] == []
    assert not any(fnmatch("pytorch_model.bin", pattern) for pattern in folders._FILES)
