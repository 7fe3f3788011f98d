"""What holds for a tokenizer of every kind: its saved folder is the same one, here and in transformers."""

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

import tokenization
from tests.support.text import split_ids
from tests.tokenization.test_sentencepiece import KINDS, TEXTS
from tokenization import EncodingRules, FastBackend, FastUnavailable, TokenizationError, TokenizerKind

MODELS = {"-".join(map(str, options.values())): options for options in KINDS}
END = "<|endoftext|>"


@pytest.fixture(params=["tokenizer.json", "vocab.json and merges.txt", "ranks", *MODELS])
def path(request, trained, make_folder, ranks_file, make_model, tmp_path) -> Path:
    if request.param in MODELS:
        return make_model(**MODELS[request.param])
    if request.param == "ranks":
        return ranks_file
    if request.param == "tokenizer.json":
        return make_folder(config={"eos_token": END, "pad_token": "<|pad|>"}, bos="<|pad|>")
    folder = tmp_path / "pair"
    folder.mkdir()
    Backend.from_file(str(trained / "tokenizer.json")).model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": END}))
    return folder


def test_a_saved_folder_gives_the_same_ids_names_and_fingerprint_and_loads_in_transformers(path, tmp_path):
    tokenizer = tokenization.load(path)
    tokenizer.save(tmp_path / "saved")
    again = tokenization.load(tmp_path / "saved", rules=tokenizer.rules)
    assert again.fingerprint == tokenizer.fingerprint
    assert (again.special_ids, again.all_special_ids) == (tokenizer.special_ids, tokenizer.all_special_ids)
    expected = split_ids(*tokenizer.encode_batch(TEXTS))
    for text, found, ids in zip(TEXTS, split_ids(*again.encode_batch(TEXTS)), expected, strict=True):
        assert found == ids, text

    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    roles = ("eos", "pad", "mask")
    assert [getattr(loaded, f"{role}_token_id") for role in roles] == [tokenizer.special_ids[role] for role in roles]
    assert len(loaded) == tokenizer.vocabulary_size
    for text, ids in zip(TEXTS, expected, strict=True):
        if text.strip() and "<" not in text:
            assert [*loaded(text).input_ids, *([tokenizer.eod_id] if ids else [])] == ids, text


def test_half_a_character_is_an_error(path):
    tokenizer = tokenization.load(path)
    with pytest.raises(TokenizationError, match="cannot encode this text"):
        tokenizer.encode_batch(["a", "\ud800"])
    try:
        fast = FastBackend.open(tokenizer, characters="ab")
    except FastUnavailable:
        return
    with pytest.raises(TokenizationError, match="cannot encode this text"):
        fast.encode_batch(["a", "\ud800"])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *product((TokenizerKind.TIKTOKEN, TokenizerKind.SENTENCEPIECE), ("tokenizer.model", "ranks.tiktoken", "model")),
        (TokenizerKind.TIKTOKEN, "ranks.json"),
    ],
)
def test_a_file_is_known_by_its_content_and_does_what_its_library_does(ranks_file, make_model, tmp_path, kind, name):
    source = ranks_file if kind is TokenizerKind.TIKTOKEN else make_model(**KINDS[0])
    shutil.copy(source, tmp_path / name)
    assert tokenization.load(tmp_path / name).kind is kind
    for asked in ({"parse_special_text": True}, {"add_bos": True}):
        with pytest.raises(TokenizationError, match="tiktoken" if kind is TokenizerKind.TIKTOKEN else "SentencePiece"):
            tokenization.load(tmp_path / name, rules=EncodingRules(**asked))
