"""A folder with GPT-2's own two files in place of a tokenizer.json."""

import json

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

import tokenization
from tests.support.text import sample_documents
from tokenization import TokenizationError, TokenizerKind, UnsupportedTokenizerError

END = "<|endoftext|>"


@pytest.fixture
def pair(trained, tmp_path):
    """The trained tokenizer's vocabulary and merges, as GPT-2's release writes them."""
    model = json.loads((trained / "tokenizer.json").read_text())["model"]
    folder = tmp_path / "pair"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    return folder


def test_it_gives_the_ids_of_the_tokenizer_json(pair, trained):
    texts = [*sample_documents(30, seed=4), "日本語 \x00\r\n"]
    tokenizer = tokenization.load(pair, eod=END)

    assert tokenizer.kind is TokenizerKind.HUGGINGFACE
    expected = Tokenizer.from_file(str(trained / "tokenizer.json"))
    ids, _ = tokenizer.encode_batch(texts)
    assert ids.tolist() == [token for text in texts for token in [*expected.encode(text).ids, 0]]
    assert tokenizer.encoded_vocabulary_size == 384
    # Any of the two files names it.
    found = {tokenization.load(pair / name).fingerprint for name in ("vocab.json", "merges.txt")}
    assert found == {tokenization.load(pair).fingerprint}


def test_names_come_from_the_files_beside_it(pair):
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": END, "bos_token": END}
    (pair / "tokenizer_config.json").write_text(json.dumps(config))

    assert tokenization.load(pair).special_ids == {"bos": 0, "eos": 0, "pad": None, "mask": 384}


def test_a_class_that_works_otherwise_is_refused(pair):
    (pair / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')

    with pytest.raises(UnsupportedTokenizerError, match="RobertaTokenizer"):
        tokenization.load(pair)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("vocab.json", "[]", "maps tokens to ids"),
        ("vocab.json", '{"a": -1}', "maps tokens to ids"),
        ("vocab.json", "{", "cannot be read as JSON"),
        ("merges.txt", "a b c\n", "two tokens per line"),
        ("merges.txt", "nowhere x\n", "does not fit"),
    ],
)
def test_a_damaged_file_is_named(pair, file, content, message):
    (pair / file).write_text(content)

    with pytest.raises(TokenizationError, match=message) as failure:
        tokenization.load(pair)
    assert str(pair / file) in str(failure.value)


ADDED = {"<|mask|>": 384, "<|pad|>": 385, "<|sep|>": 386, "<extra>": 387}
NAMES = {"eos_token": END, "sep_token": "<|sep|>", "pad_token": "<|pad|>", "mask_token": "<|mask|>"}


@pytest.fixture
def nameless_pair(pair):
    """The pair without its pad and mask tokens, whose ids ordinary tokens take."""
    vocabulary = json.loads((pair / "vocab.json").read_text())
    renamed = {"<|pad|>": "<|unused 1|>", "<|mask|>": "<|unused 2|>"}
    (pair / "vocab.json").write_text(json.dumps({renamed.get(text, text): id_ for text, id_ in vocabulary.items()}))
    return pair


@pytest.mark.parametrize("file", ["added_tokens.json", "tokenizer_config.json"])
def test_added_tokens_have_the_ids_that_the_files_give(nameless_pair, file):
    config = {"tokenizer_class": "GPT2Tokenizer", **NAMES}
    if file == "added_tokens.json":
        (nameless_pair / file).write_text(json.dumps(ADDED))
    else:
        config["added_tokens_decoder"] = {
            str(token_id): {"content": text, "special": text != "<extra>"} for text, token_id in ADDED.items()
        }
    (nameless_pair / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = tokenization.load(nameless_pair)
    theirs = AutoTokenizer.from_pretrained(nameless_pair)

    assert {text: tokenizer.backend.token_to_id(text) for text in ADDED} == ADDED
    assert (tokenizer.mask.id, tokenizer.special_ids["pad"], tokenizer.vocabulary_size) == (384, 385, 388)
    assert (theirs.mask_token_id, theirs.pad_token_id, theirs.sep_token_id) == (384, 385, 386)
    text = "a <extra> b<|pad|>"
    assert tokenizer.encode_batch([text])[0].tolist() == [*theirs(text).input_ids, 0]
    assert 387 not in tokenizer.all_special_ids


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"<|mask|>": 385}, r"add '<\|mask\|>' as id 385, but the tokenizer would give it 384"),
        ({"<|mask|>": 380}, "as id 380, but that id is"),
        ({"<|mask|>": "384"}, "expected the id of each added token"),
        (["<|mask|>"], "expected a JSON object"),
    ],
)
def test_added_tokens_that_cannot_have_their_ids_are_refused(nameless_pair, added, message):
    (nameless_pair / "added_tokens.json").write_text(json.dumps(added))

    with pytest.raises(TokenizationError, match=message):
        tokenization.load(nameless_pair)
