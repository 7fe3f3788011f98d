import base64
import json
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

import tokenization
from tests.support.text import sample_documents, split_ids
from tokenization import EncodingRules, MaskOrigin, TokenizationError, TokenizerKind
from tokenization.specs import shipped_names, shipped_spec

TEXTS = [
    *sample_documents(40, seed=7), "", "x", " ", "\r\n\n", "<|begin_of_text|>literal<|end_of_text|>",
    "日本語 🙂 e\u0301", "a" * 300 + " " * 300, "\x00",
]  # fmt: skip
NUM_RANKS = 381


def library(ranks_file: Path) -> tiktoken.Encoding:
    """tiktoken itself, from the published layout of the file and the scheme of Llama 3."""
    lines = ranks_file.read_text().split("\n")
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines if line}
    return tiktoken.Encoding(
        "reference", pat_str=shipped_spec("llama3").pattern, mergeable_ranks=ranks, special_tokens={}
    )


def test_ids_are_those_of_tiktoken_then_the_end(ranks_file):
    tokenizer = tokenization.load(ranks_file)

    ids, lengths = tokenizer.encode_batch(TEXTS)

    assert tokenizer.kind is TokenizerKind.TIKTOKEN
    assert (ids.dtype, lengths.dtype) == (np.uint32, np.int64)
    expected = [library(ranks_file).encode_ordinary(text) for text in TEXTS]
    assert split_ids(ids, lengths) == [[*found, tokenizer.eod_id] if found else [] for found in expected]
    # Also one that tiktoken gives up on.
    text = " " * 1_000_000 + "x"
    ids, lengths = tokenizer.encode_batch([text, "x"])
    assert lengths[1] == 2
    assert tokenizer.decode(ids[: lengths[0] - 1]) == text


def test_special_ids_follow_the_ranks_and_the_form_is_that_of_llama_3(ranks_file):
    tokenizer = tokenization.load(ranks_file)

    assert tokenizer.special_ids == {"bos": NUM_RANKS, "eos": NUM_RANKS + 1, "pad": None, "mask": NUM_RANKS + 2}
    assert tokenizer.mask.origin is MaskOrigin.RESERVED
    assert tokenizer.mask.text == "<|reserved_special_token_0|>"
    assert tokenizer.encoded_vocabulary_size == tokenizer.vocabulary_size == NUM_RANKS + 256
    assert tokenizer.all_special_ids == tuple(range(NUM_RANKS, NUM_RANKS + 256))
    backend = tokenizer.backend
    assert [backend.token_to_id(text) - NUM_RANKS for text in ("<|start_header_id|>", "<|eot_id|>")] == [6, 9]
    assert backend.token_to_id("<|reserved_special_token_250|>") == NUM_RANKS + 255
    # Its parts, as published tokenizers of the family have them.
    content = json.loads(backend.to_str())
    assert [part["type"] for part in content["pre_tokenizer"]["pretokenizers"]] == ["Split", "ByteLevel"]
    assert content["model"]["ignore_merges"] is True
    assert content["post_processor"] is None
    assert Backend.from_str(json.dumps(content)).get_vocab_size() == NUM_RANKS + 256


def test_a_folder_with_one_model_file_is_that_file(ranks_file, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(ranks_file.read_bytes())

    assert tokenization.load(tmp_path).fingerprint == tokenization.load(ranks_file).fingerprint


def test_what_is_left_open_is_the_way_of_the_kind(ranks_file, trained):
    assert tokenization.load(ranks_file).rules == EncodingRules(parse_special_text=False, add_bos=False)
    assert tokenization.load(trained).rules == EncodingRules(parse_special_text=True, add_bos=True)


def line(token: bytes, rank: int) -> str:
    return f"{base64.b64encode(token).decode()} {rank}\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text + "not base64 !\n", "line 382 is"),
        (lambda text: text + line(b"a", 999), "a second time"),
        (lambda text: text + line(b"qqqq", 5), "one rank to two tokens"),
        (lambda text: text + line(b"qqqq", 100_000), "may be cut off"),
        (lambda text: "".join(text.splitlines(keepends=True)[:200]), "no rank for 56 of the 256 bytes"),
        (lambda text: text.replace(" 1\n", " 1 7\n", 1), "line 2 is"),
    ],
)
def test_a_damaged_rank_file_is_named(ranks_file, tmp_path, change, message):
    path = tmp_path / "damaged"
    path.write_text(change(ranks_file.read_text()))

    with pytest.raises(TokenizationError, match=message) as failure:
        tokenization.load(path)
    assert str(path) in str(failure.value)


def spec_file(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_spec_of_ones_own_names_its_ranks_and_scheme(ranks_file, tmp_path):
    (tmp_path / "my.ranks").write_bytes(ranks_file.read_bytes())
    path = spec_file(
        tmp_path,
        'scheme = "llama3"\nranks = "my.ranks"\nspecial_tokens = ["<end>", "<hide>", "<fill>"]\n'
        'eos = "<end>"\nmask = "<hide>"\npad = "<fill>"\n',
    )
    with pytest.raises(TokenizationError, match=r"names '<\|begin_of_text\|>' as its bos token"):
        tokenization.load(path)
    path.write_text(f'bos = ""\n{path.read_text()}')

    tokenizer = tokenization.load(path)

    assert tokenizer.special_ids == {"bos": None, "eos": 381, "pad": 383, "mask": 382}
    assert tokenizer.mask.origin is MaskOrigin.NAMED
    assert tokenizer.vocabulary_size == 384


def test_a_spec_of_ones_own_may_bring_its_pattern(ranks_file, tmp_path):
    path = spec_file(tmp_path, f"pattern = '[\\s\\S]{{1,2}}'\nranks = '{ranks_file}'\n")
    tokenizer = tokenization.load(path)

    ids, _ = tokenization.load(path, rules=EncodingRules(add_eod=False)).encode_batch(["aaaa"])

    assert len(tokenizer.all_special_ids) == 1
    assert ids.size >= 2
    with pytest.raises(TokenizationError, match="the tokenizer spec names neither eos nor sep"):
        tokenizer.encode_batch(["a"])


def test_special_ids_with_gaps_are_kept_and_a_mask_goes_behind_them(ranks_file, tmp_path):
    """As cl100k_base has them: the first special id is not the one behind the ranks, and the last stands alone."""
    path = spec_file(
        tmp_path,
        f'scheme = "cl100k_base"\nranks = "{ranks_file}"\n[special_tokens]\n"<|endoftext|>" = 390\n"<|last|>" = 400\n',
    )
    tokenizer = tokenization.load(path)
    tokenizer.save(tmp_path / "saved")
    again = tokenization.load(tmp_path / "saved", rules=EncodingRules(parse_special_text=False))

    assert (tokenizer.eod_id, tokenizer.mask.id) == (390, 401)
    assert (tokenizer.encoded_vocabulary_size, tokenizer.vocabulary_size) == (401, 402)
    assert tokenizer.all_special_ids == (390, 400, 401)
    assert (again.eod_id, again.mask.id, again.fingerprint) == (390, 401, tokenizer.fingerprint)
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").mask_token_id == 401
    for found, expected in zip(again.encode_batch(TEXTS), tokenizer.encode_batch(TEXTS), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pattern = ", "it is not TOML"),
        ("patern = 'x'", "unknown key 'patern'. Known keys: "),
        ("ranks = 'RANKS'", "says neither how text is split"),
        ("pattern = 3", "pattern should be a text and is 3"),
        ("pattern = 'x'", "names no rank file"),
        ("pattern = '('\nranks = 'RANKS'", "pattern of the tokenizer spec"),
        ("pattern = 'x?'\nranks = 'RANKS'", "it matches where there is no character"),
        ("pattern = 'x'\nranks = 'nowhere'", "nowhere cannot be read"),
        ("pattern = 'x'\nranks = 3", "ranks should be the path"),
        ("pattern = 'x'\nranks = 'RANKS'\nspecial_tokens = ['a', 'a']", "special_tokens should be a list of different"),
        ("pattern = 'x'\nranks = 'RANKS'\nspecial_tokens = {'<a>' = 5}", "has the id 5, which is taken"),
        ("pattern = 'x'\nranks = 'RANKS'\nspecial_tokens = ['a']", "is a token of the rank file too"),
        ("pattern = 'x'\nranks = 'RANKS'\neos = '<e>'", "does not list it as special"),
        (
            "pattern = 'x'\nranks = 'RANKS'\nreserved = {text = '<r>', first_number = 0, total = 3}",
            "reserved should be",
        ),
    ],
)
def test_a_spec_that_cannot_be_used_says_why(ranks_file, tmp_path, text, message):
    with pytest.raises(TokenizationError, match=message):
        tokenization.load(spec_file(tmp_path, text.replace("RANKS", str(ranks_file))))


def test_a_pattern_that_the_two_libraries_read_differently_is_refused(ranks_file, tmp_path):
    r"""`{1,3}+` is possessive to one and a repetition to the other."""
    path = spec_file(tmp_path, f"pattern = '''\\p{{N}}{{1,3}}+|\\P{{N}}+'''\nranks = '{ranks_file}'\n")
    ranks = ranks_file.read_text() + line(b"123", 381) + line(b"1234", 382)
    (tmp_path / "ranks").write_text(ranks)
    path.write_text(path.read_text().replace(str(ranks_file), "ranks"))

    with pytest.raises(TokenizationError, match=r"no tokenizer\.json that gives the same ids"):
        tokenization.load(path)


def test_the_shipped_specs_are_whole():
    """Each can be read, and finds its ranks somewhere."""
    assert shipped_names() == ["cl100k_base", "llama3", "o200k_base", "r50k_base"]
    for name in shipped_names():
        spec = shipped_spec(name)
        assert spec.ranks is not None
        assert spec.ranks.sha256 is not None
        assert spec.roles["eos"] in spec.special_ids(50_000)


@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base", "r50k_base"])
def test_shipped_patterns_split_as_tiktokens_own(name, monkeypatch, ranks_file):
    """tiktoken's definition of the encoding, with the small ranks in place of the ones that it downloads."""
    from tiktoken_ext import openai_public

    ranks = library(ranks_file)._mergeable_ranks
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: ranks)
    defined = openai_public.ENCODING_CONSTRUCTORS[name]()
    spec = shipped_spec(name)
    theirs, ours = (
        tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        for pattern in (defined["pat_str"], spec.pattern)
    )
    hard = ["It's 12345 I'LL\n\n  x\r\n", "ÄÖß don\u2019t  a1b22\t\t..\n", "HTTPServer's /usr/bin\n/ \u00a0 \u3000"]

    assert spec.special_ids(0) == defined["special_tokens"]
    for text in [*TEXTS, *hard]:
        assert ours.encode_ordinary(text) == theirs.encode_ordinary(text), text


def test_a_shipped_spec_finds_its_ranks_where_tiktoken_keeps_them(ranks_file, tmp_path, monkeypatch):
    """The cache of tiktoken, under the name that it gives a file; a wrong file there is not taken."""
    import hashlib

    spec = shipped_spec("r50k_base")
    assert spec.ranks is not None
    assert spec.ranks.url is not None
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    (tmp_path / hashlib.sha1(spec.ranks.url.encode()).hexdigest()).write_bytes(ranks_file.read_bytes())

    with pytest.raises(TokenizationError, match=r"could not download.*TIKTOKEN_CACHE_DIR"):
        tokenization.load("r50k_base")
