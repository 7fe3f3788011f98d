"""Real vocabularies, where they lie beside the repository; skipped elsewhere."""

import base64
import gzip
import json

import numpy as np
import pytest
import sentencepiece
import tiktoken
from transformers import AutoTokenizer

import tokenization
from tokenization import EncodingRules, FastBackend, TokenizerKind
from tokenization.specs import shipped_spec

LITERAL = EncodingRules(parse_special_text=False)
SENTENCEPIECE = ("llama2/tokenizer.model", "sentencepiece-unigram/test_model.model")


@pytest.fixture(scope="module")
def texts(shared_data):
    """Some 600 KB: articles, the start of a novel with \\r\\n, and tokenised text with `<unk>` in it."""
    with gzip.open(shared_data / "text" / "wiki-en-2014-jsonl" / "part-00000.jsonl.gz") as file:
        articles = [json.loads(next(file))["text"] for _ in range(150)]
    novel = (shared_data / "text" / "novels-txt" / "Conrad_Rover_1923.txt").read_bytes().decode()[:100_000]
    tokenised = (shared_data / "text" / "wikitext-2" / "valid.txt").read_text(encoding="utf-8")[:100_000]
    return [*articles, novel, tokenised]


@pytest.fixture(scope="module")
def llama3(shared_data):
    return tokenization.load(shared_data / "tokenizers" / "llama3" / "tokenizer.model")


@pytest.fixture(scope="module")
def llama3_folder(llama3, tmp_path_factory):
    """The same as it is saved."""
    folder = tmp_path_factory.mktemp("llama3")
    llama3.save(folder)
    return folder


def equal(found, expected):
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_llama_3_gives_the_ids_of_tiktoken_and_has_those_of_the_recipe(shared_data, llama3, texts):
    lines = (shared_data / "tokenizers" / "llama3" / "tokenizer.model").read_bytes().split()
    ranks = {base64.b64decode(token): int(rank) for token, rank in zip(lines[::2], lines[1::2], strict=True)}
    library = tiktoken.Encoding(
        "x", pat_str=shipped_spec("llama3").pattern, mergeable_ranks=ranks, special_tokens={"<|end_of_text|>": 128001}
    )

    ids, lengths = llama3.encode_batch(texts)

    assert ids.tolist() == [token for text in texts for token in [*library.encode_ordinary(text), 128001]]
    assert int(lengths.sum()) == ids.size
    assert llama3.kind is TokenizerKind.TIKTOKEN
    assert llama3.special_ids == {"bos": 128000, "eos": 128001, "pad": None, "mask": 128002}
    assert llama3.encoded_vocabulary_size == llama3.vocabulary_size == 128_256
    assert (llama3.backend.token_to_id("<|eot_id|>"), llama3.backend.id_to_token(128255)) == (
        128009,
        "<|reserved_special_token_250|>",
    )


def test_llama_3_saved_gives_the_same_ids_and_fingerprint_and_loads_in_transformers(llama3, llama3_folder, texts):
    again = tokenization.load(llama3_folder, rules=LITERAL)
    loaded = AutoTokenizer.from_pretrained(llama3_folder)

    assert again.fingerprint == llama3.fingerprint
    assert equal(again.encode_batch(texts), llama3.encode_batch(texts))
    assert (loaded.mask_token_id, loaded.eos_token_id, len(loaded)) == (128002, 128001, 128_256)
    assert [*loaded(texts[0]).input_ids, 128001] == llama3.encode_batch(texts[:1])[0].tolist()
    assert llama3.decode(loaded(texts[0]).input_ids) == texts[0]


def test_the_fingerprint_is_that_of_a_tokenizer_json_with_a_beginning(llama3, llama3_folder, tmp_path):
    """As the family's published tokenizer.json has one: a template puts the bos token in front."""
    content = json.loads((llama3_folder / "tokenizer.json").read_text())
    bos = "<|begin_of_text|>"
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [128000], "tokens": [bos]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": bos, "eos_token": "<|end_of_text|>"}))
    published = tokenization.load(tmp_path)

    assert published.fingerprint == llama3.fingerprint
    assert published.special_ids == llama3.special_ids
    assert published.encode_batch(["x"])[0].tolist() == [128000, *llama3.encode_batch(["x"])[0].tolist()]


@pytest.mark.parametrize("file", SENTENCEPIECE)
def test_sentencepiece_models_give_the_librarys_ids_and_so_do_their_saved_folders(shared_data, texts, tmp_path, file):
    path = shared_data / "tokenizers" / file
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = tokenization.load(path)
    tokenizer.save(tmp_path)
    again = tokenization.load(tmp_path, rules=LITERAL)
    some = texts[::3]

    expected = tokenizer.encode_batch(some)

    assert expected[0].tolist() == [token for text in some for token in [*library.encode(text), library.eos_id()]]
    assert equal(again.encode_batch(some), expected)
    assert again.fingerprint == tokenizer.fingerprint
    assert AutoTokenizer.from_pretrained(tmp_path).mask_token_id == tokenizer.mask.id == library.vocab_size()


def test_gpt2_gives_text_back(shared_data, texts):
    tokenizer = tokenization.load(shared_data / "tokenizers" / "gpt2", eod="<|endoftext|>")
    ids, lengths = tokenizer.encode_batch(texts[:3])

    assert (tokenizer.eod_id, tokenizer.encoded_vocabulary_size, tokenizer.mask.id) == (50256, 50257, 50257)
    assert tokenizer.decode(ids[: lengths[0] - 1]) == texts[0]


@pytest.mark.parametrize(("name", "eod"), [("bert-base-uncased", "[SEP]"), ("gpt-neox-olmo", "<|endoftext|>")])
def test_a_tokenizer_json_alone_names_no_end(shared_data, name, eod):
    folder = shared_data / "tokenizers" / name

    assert tokenization.load(folder).eod_id is None
    assert tokenization.load(folder, eod=eod).eod_text == eod


@pytest.mark.parametrize("name", ["llama3", "gpt-neox-olmo"])
def test_the_fast_encoder_equals_the_reference(shared_data, texts, llama3, name):
    """With all of Unicode looked at, and whitespace tokens and composed characters in the second vocabulary."""
    pytest.importorskip("gigatoken")
    olmo = shared_data / "tokenizers" / "gpt-neox-olmo"
    tokenizer = llama3 if name == "llama3" else tokenization.load(olmo, eod="<|endoftext|>")
    encoder = FastBackend.open(tokenizer)
    hard = ["a    b\n\n   c <|endoftext|> \U00011de0 e\u0301 \U000113c2\U000113c2", "", " " * 200_000]

    assert encoder.check_vocabulary() is None
    assert equal(encoder.encode_batch([*texts, *hard]), tokenizer.encode_batch([*texts, *hard]))
