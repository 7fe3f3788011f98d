import json
import shutil

import numpy as np
import pytest
import sentencepiece
from transformers import AutoTokenizer

import tokenization
from tests.support.text import sample_documents, split_ids
from tokenization import EncodingRules, MaskOrigin, TokenizationError, TokenizerKind, UnsupportedTokenizerError

TEXTS = [
    *sample_documents(40, seed=7),
    "",
    "x",
    " ",
    "   ",
    "  leading, and   inner    spaces; trailing   ",
    "line\nline\r\n\ttab\u3000wide\u00a0hard",
    "<s> literal </s> <unk><unk> <pad> <0x0A> <0xFF>",
    "日本語 🙂 e\u0301 ﬁ ① Å",
    "\u2581 of the text itself \u2581\u2581",
    "a" * 100 + " " * 100,
    "\x01",
]
KINDS = [
    {"model_type": "bpe", "byte_fallback": True},
    {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "add_dummy_prefix": False},
    {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
     "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True},
    {"model_type": "bpe", "pad_id": 3},
    {"model_type": "unigram"},
    {"model_type": "unigram", "byte_fallback": True},
    {"model_type": "unigram", "normalization_rule_name": "nfkc_cf", "add_dummy_prefix": False},
    {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": False},
    {"model_type": "unigram", "user_defined_symbols": ["<sep>", "river"], "unk_id": 2, "bos_id": 0, "eos_id": 1},
    {"model_type": "bpe", "byte_fallback": True, "user_defined_symbols": ["<sep>", "river"], "add_dummy_prefix": False},
]  # fmt: skip
names = pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(map(str, options.values())))


def library(path):
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


@names
def test_ids_are_those_of_the_library_then_the_end(make_model, options):
    path = make_model(**options)
    tokenizer = tokenization.load(path)

    ids, lengths = tokenizer.encode_batch([*TEXTS, "a <sep> b river"])

    assert tokenizer.kind is TokenizerKind.SENTENCEPIECE
    assert (ids.dtype, lengths.dtype) == (np.uint32, np.int64)
    expected = [library(path).encode(text) for text in [*TEXTS, "a <sep> b river"]]
    assert split_ids(ids, lengths) == [[*found, tokenizer.eod_id] if found else [] for found in expected]


@names
def test_special_ids_are_the_models_own(make_model, options):
    path = make_model(**options)
    tokenizer, own = tokenization.load(path), library(path)

    def or_none(token_id):
        return None if token_id < 0 else token_id

    assert tokenizer.special_ids == {
        "bos": or_none(own.bos_id()),
        "eos": own.eos_id(),
        "pad": or_none(own.pad_id()),
        "mask": own.vocab_size(),
    }
    assert tokenizer.mask.origin is MaskOrigin.APPENDED
    assert tokenizer.encoded_vocabulary_size == own.vocab_size()
    assert tokenizer.vocabulary_size == own.vocab_size() + 1
    special = {own.unk_id(), own.bos_id(), own.eos_id(), own.pad_id()} - {-1}
    assert tokenizer.all_special_ids == tuple(sorted({*special, own.vocab_size()}))


@names
def test_decoding_gives_what_the_library_gives_back(make_model, options):
    path = make_model(**options)
    tokenizer, own = tokenization.load(path, rules=EncodingRules(add_eod=False)), library(path)

    for text in TEXTS:
        ids = own.encode(text)
        if own.unk_id() not in ids:
            assert tokenizer.decode(ids) == own.decode(ids), text
    if options["model_type"] == "bpe" and options.get("byte_fallback"):
        assert tokenizer.decode(own.encode("日本語 🙂")) == "日本語 🙂"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "word"}, "cuts text into words"),
        ({"model_type": "char"}, "cuts text into chars"),
        ({"model_type": "unigram", "treat_whitespace_as_suffix": True}, "writes spaces after words"),
        ({"model_type": "bpe", "user_defined_symbols": ["<sep>"]}, "user-defined symbols"),
    ],
)
def test_what_no_tokenizer_json_can_do_is_refused(make_model, options, message):
    with pytest.raises(UnsupportedTokenizerError, match=message):
        tokenization.load(make_model(**options))


def test_a_merged_vocabulary_is_refused_where_equal_scores_overlap(make_model):
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    path = make_model(**KINDS[0])
    model = ModelProto.FromString(path.read_bytes())
    known = {piece.piece for piece in model.pieces}
    for text in "xyz":
        if text not in known:
            model.pieces.add(piece=text, score=-1000)
    merged = path.with_name("merged.model")
    for text in ("xy", "zx"):  # appended with a score of 0, as one vocabulary is merged into another
        merged.write_bytes(model.SerializeToString())
        tokenization.load(merged)
        model.pieces.add(piece=text)
    merged.write_bytes(model.SerializeToString())

    with pytest.raises(UnsupportedTokenizerError, match="overlapping pieces of equal score"):
        tokenization.load(merged)


@pytest.mark.parametrize("size", [0, 1, 3, 1000, -1])
def test_a_model_that_is_cut_off_is_named(make_model, tmp_path, size):
    content = make_model(**KINDS[4]).read_bytes()
    path = tmp_path / "cut.model"
    path.write_bytes(content[:size])

    with pytest.raises(TokenizationError) as failure:
        tokenization.load(path)
    assert str(path) in str(failure.value)


def test_a_model_without_an_end_needs_one_named(make_model):
    tokenizer = tokenization.load(make_model(model_type="unigram", eos_id=-1))

    assert tokenizer.special_ids["eos"] is None
    with pytest.raises(TokenizationError, match="has no end-of-sentence piece"):
        tokenizer.encode_batch(["a"])


def test_a_folder_adds_the_tokens_of_its_files(make_model, tmp_path):
    """As fine-tuned Llama models have them; SentencePiece itself reads their strings as text."""
    model = make_model(model_type="bpe", byte_fallback=True)
    shutil.copy(model, tmp_path / "tokenizer.model")
    size = library(model).GetPieceSize()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[PAD]": size, "<|mask|>": size + 1}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": "<|mask|>", "pad_token": "[PAD]"}))
    tokenizer = tokenization.load(tmp_path)

    assert (tokenizer.special_ids["pad"], tokenizer.mask.id) == (size, size + 1)
    assert (tokenizer.special_ids["eos"], tokenizer.vocabulary_size) == (library(model).eos_id(), size + 2)
    assert tokenizer.encode_batch(["a [PAD] b"])[0].tolist() == [*library(model).Encode("a [PAD] b"), tokenizer.eod_id]
    tokenizer.save(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert (loaded.pad_token_id, loaded.mask_token_id) == (size, size + 1)
