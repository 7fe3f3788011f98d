import json
from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

import tokenization
from tests.support.text import sample_documents, split_ids
from tokenization import EncodingRules, TokenizationError

END, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"


def reference(folder, texts, *, eod):
    """One text at a time, as Megatron-LM's loop does: the tokenizer's own ids, then the end."""
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [[*backend.encode(text).ids, eod] for text in texts]


@pytest.mark.parametrize("bos", [None, PAD])
def test_ids_are_those_of_the_reference_then_the_end(make_folder, bos):
    folder = make_folder(config={"eos_token": END}, bos=bos)
    texts = [*sample_documents(50, seed=3), "x", "\n", f"a {END} b", "日本語 🙂"]

    ids, lengths = tokenization.load(folder).encode_batch(texts)

    assert ids.dtype == np.uint32
    assert lengths.dtype == np.int64
    assert split_ids(ids, lengths) == reference(folder, texts, eod=0)


def _ending(token: str, token_id: int) -> Callable[[Tokenizer], None]:
    """Give a backend a post-processor that ends every text with a token."""

    def change(backend: Tokenizer) -> None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{PAD} $A {token}",
            pair=f"{PAD} $A {token} $B {token}",
            special_tokens=[(PAD, 1), (token, token_id)],
        )

    return change


@pytest.mark.parametrize(
    ("end", "choices", "num_ends"), [(END, {}, 1), (END, {"eod": END}, 2), (END, {"eod": MASK}, 2), (MASK, {}, 2)]
)
def test_a_text_that_the_tokenizer_ends_itself_ends_once(make_folder, end, choices, num_ends):
    """A token given explicitly is appended all the same, as Megatron-LM's --append-eod does; so is another end."""
    token_id = Tokenizer.from_file(str(make_folder("plain") / "tokenizer.json")).token_to_id(end)
    folder = make_folder(config={"eos_token": END}, change=_ending(end, token_id))
    tokenizer = tokenization.load(folder, **choices)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))

    ids, lengths = tokenizer.encode_batch(["the river", "x"])

    assert split_ids(ids, lengths) == [
        [*backend.encode(text).ids, *[tokenizer.eod_id] * (num_ends - 1)] for text in ("the river", "x")
    ]
    assert (tokenizer.ends_texts, tokenizer.appended_ids.size) == (tokenizer.eod_id == token_id, num_ends - 1)


def test_a_saved_tokenizer_puts_in_front_of_a_text_what_encoding_did(make_folder, tmp_path):
    folder = make_folder(config={"eos_token": END}, change=_ending(MASK, 2))
    tokenizer = tokenization.load(folder, rules=EncodingRules(add_bos=False))
    tokenizer.save(tmp_path / "saved")
    plain = tokenizer.backend.encode("the river", add_special_tokens=False).ids

    assert tokenizer.encode_batch(["the river"])[0].tolist() == [*plain, 2, 0]
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")("the river").input_ids == [*plain, 2]
    assert tokenization.load(tmp_path / "saved").encode_batch(["the river"])[0].tolist() == [*plain, 2, 0]
    encoding = json.loads((tmp_path / "saved" / "encoding.json").read_text())
    rules = {"parse_special_text": True, "add_bos": False, "add_eod": True}
    assert encoding == {**rules, "frame": {"front": [], "back": [2, 0]}, "source": None}


def test_a_text_without_ids_has_no_end_and_no_texts_give_no_ids(trained):
    ids, lengths = tokenization.load(trained).encode_batch(["ab", "", "c"])

    assert lengths[1] == 0
    assert ids.size == lengths.sum()
    assert ids[-1] == 0
    ids, lengths = tokenization.load(trained).encode_batch([])
    assert (ids.size, lengths.size) == (0, 0)


def test_the_front_and_the_end_can_be_left_out(make_folder):
    folder = make_folder(config={"eos_token": END}, bos=PAD)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("the river", add_special_tokens=False).ids

    def encoded(**rules):
        return tokenization.load(folder, rules=EncodingRules(**rules)).encode_batch(["the river"])[0].tolist()

    assert encoded() == [1, *plain, 0]
    assert encoded(add_bos=False) == [*plain, 0]
    assert encoded(add_eod=False) == [1, *plain]
    assert encoded(add_bos=False, add_eod=False) == plain


def test_special_text_is_parsed_or_literal_and_counted_in_both_ways(trained):
    text = f"a{END}b"

    parsed, _ = tokenization.load(trained).encode_batch([text])
    literal, _ = tokenization.load(trained, rules=EncodingRules(parse_special_text=False)).encode_batch([text])

    assert parsed.tolist().count(0) == 2
    assert literal.tolist().count(0) == 1
    assert tokenization.load(trained).decode(literal) == text + END
    texts = [f"{END}{PAD}", "nothing <| here |>", f"{MASK}", "<|endoftext"]
    for parse in (True, False):
        tokenizer = tokenization.load(trained, rules=EncodingRules(parse_special_text=parse))
        assert tokenizer.special_text_hits(texts, *tokenizer.encode_batch(texts)).sum() == 3


@pytest.mark.parametrize("parse", [True, False])
@pytest.mark.parametrize("bos", [None, PAD])
def test_special_text_of_each_document_is_what_a_search_of_all_texts_finds(make_folder, parse, bos):
    """Ids show which texts have such strings; the ids around every text and unknown characters do not count."""
    folder = make_folder(config={"eos_token": END, "unk_token": "<unk>"}, bos=bos)
    tokenizer = tokenization.load(folder, rules=EncodingRules(parse_special_text=parse))
    generator = np.random.default_rng(5)
    parts = [END, PAD, MASK, "<unk>", "<|end", "oftext|>", " ", "the", "\u65e5", ""]
    texts = ["".join(parts[number] for number in generator.integers(0, len(parts), 4)) for _ in range(300)]

    ids, lengths = tokenizer.encode_batch(texts)

    hits = tokenizer.special_text_hits(texts, ids, lengths).tolist()
    assert hits == [tokenizer._special_text.count(text) for text in texts]
    assert max(hits) > 2


def test_unknown_characters_are_no_special_text(tmp_path):
    """Their id is that of a special token, whose string does not stand in the text."""
    backend = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"unk_token": "[UNK]", "eos_token": "a"}')
    tokenizer = tokenization.load(tmp_path)
    texts = ["b b", "a", "a [UNK] b"]

    assert tokenizer.special_text_hits(texts, *tokenizer.encode_batch(texts)).tolist() == [0, 1, 2]


def test_the_longest_special_string_counts_once(make_folder):
    folder = make_folder(config={"additional_special_tokens": ["<s>", "<s><s>"]})

    assert tokenization.load(folder)._special_text.count("<s><s>, <s> <s>") == 3


def test_truncation_padding_and_dropout_in_the_file_are_ignored(make_folder):
    def change(backend):
        backend.enable_truncation(4)
        backend.enable_padding(length=8)
        backend.model.dropout = 0.9

    folder = make_folder(config={"eos_token": END}, change=change)
    text = "the river and the red door and that song"

    ids, _ = tokenization.load(folder).encode_batch([text, "a"])

    assert tokenization.load(folder).decode(ids) == f"{text}{END}a{END}"
    tokenizer = tokenization.load(folder)
    first, _ = tokenizer.encode_batch(["the river and the red door"] * 20)
    assert np.array_equal(first.reshape(20, -1), np.tile(first.reshape(20, -1)[0], (20, 1)))


def test_decoding_gives_the_text_back_with_special_tokens_written_out(trained):
    tokenizer = tokenization.load(trained)
    text = "A letter from Orléans — at last.\n"

    ids, _ = tokenizer.encode_batch([text])

    assert tokenizer.decode(ids) == text + END
    assert tokenizer.decode([2, 1]) == MASK + PAD


def test_what_the_vocabulary_cannot_spell_is_an_error(tmp_path):
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenization.load(tmp_path, rules=EncodingRules(add_eod=False))

    assert tokenizer.encode_batch(["a a"])[0].tolist() == [0, 0]
    with pytest.raises(TokenizationError, match="cannot encode this text"):
        tokenizer.encode_batch(["b"])
