"""The fast backend: equal to the reference in every array, or caught."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tokenizers import models, normalizers, pre_tokenizers, processors

import tokenization
from tests.support.apart import run_apart
from tests.support.text import sample_documents
from tokenization import BackendsDiffer, EncodingRules, FastBackend, FastUnavailable
from tokenization.backend import byte_level_text
from tokenization.fast import backend as fast
from tokenization.fast.form import FallbackTexts, fast_form

pytest.importorskip("gigatoken", reason="the extra `fast` is not installed")

END, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"

_SIGNS = " \t\n\r\u00a0\u3000\u200b", "abcXYZ'", "0123\u0663\u00bd", ".,-_/\\!|<>", "\u0301\u0308\u093f", "\u4e2d\ud55c"


def random_texts(count: int, *, seed: int = 0) -> list[str]:
    """Runs of signs of one kind, in any order."""
    generator = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        runs = generator.integers(0, len(_SIGNS), size=int(generator.integers(0, 12)))
        texts.append("".join("".join(generator.choice(list(_SIGNS[run]), size=4).tolist()) for run in runs))
    return texts


TEXTS = [
    *sample_documents(60, seed=11), *random_texts(300), "", "x", f"a{END}b {PAD}", "", "  ing  ",
    "\U0001f642\U0001f469\u200d\U0001f467", "\U00011de0 \U00011de0.\n", "a" * 5000 + " " * 5000, "\x00",
    "7\x04 12 \U000f0000", "",
]  # fmt: skip


CHARACTERS = [chr(code) for code in (*range(0x20, 0x180), *range(0x300, 0x380), *range(0x11DC0, 0x11E00))]
"""Few enough to be quick; the test of all of them is the one on real vocabularies."""


def opened(tokenizer):
    return FastBackend.open(tokenizer, characters=CHARACTERS)


def assert_equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)


def template(backend, *, front=(), back=()):
    ids = {text: backend.token_to_id(text) for text in (*front, *back)}
    single = " ".join([*front, "$A", *back])
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=f"{single} $B", special_tokens=list(ids.items())
    )


def without_control_bytes(backend):
    """As SmolLM2: no token for most control bytes and rare first bytes, and digits cut one by one."""
    content = json.loads(backend.to_str())["model"]
    lost = {byte_level_text(bytes([byte])) for byte in (*range(9), *range(14, 32), *range(0xF1, 256))}
    vocabulary = {text: token_id for text, token_id in content["vocab"].items() if text not in lost}
    merges = [(left, right) for left, right in content["merges"] if left in vocabulary and right in vocabulary]
    ends = sorted(vocabulary, key=vocabulary.get)
    backend.model = models.BPE(vocab={text: token_id for token_id, text in enumerate(ends)}, merges=merges)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])


CHANGES = {
    "plain": None,
    "front": lambda backend: template(backend, front=[PAD]),
    "front and back": lambda backend: template(backend, front=[PAD, MASK], back=[END]),
    "byte-level post-processor": lambda backend: setattr(backend, "post_processor", processors.ByteLevel()),
    "prefix space": lambda backend: setattr(backend, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "missing bytes": without_control_bytes,
    "normalizer": lambda backend: setattr(backend, "normalizer", normalizers.NFC()),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "rules",
    [{}, {"add_bos": False}, {"add_eod": False}, {"parse_special_text": False}, {"add_bos": False, "add_eod": False}],
    ids=str,
)
def test_it_gives_the_arrays_of_the_reference(make_folder, change, rules):
    folder = make_folder(config={"eos_token": END}, change=CHANGES[change], extra_tokens=("ing", "  "))
    tokenizer = tokenization.load(folder, rules=EncodingRules(**rules))

    backend = opened(tokenizer)

    assert backend.check_vocabulary() is None
    assert_equal(backend.encode_batch(TEXTS), tokenizer.encode_batch(TEXTS))
    assert_equal(backend.encode_batch([]), tokenizer.encode_batch([]))
    assert_equal(backend.encode_batch(["", ""]), tokenizer.encode_batch(["", ""]))


def test_tiktoken_ranks_and_their_saved_folder(ranks_file, tmp_path):
    tokenizer = tokenization.load(ranks_file)
    tokenizer.save(tmp_path)

    for source in (tokenizer, tokenization.load(tmp_path)):
        backend = opened(source)
        assert backend.check_vocabulary() is None
        assert_equal(backend.encode_batch(TEXTS), source.encode_batch(TEXTS))


@pytest.mark.parametrize("scheme", ["cl100k_base", "o200k_base", "r50k_base"])
def test_every_shipped_scheme(ranks_file, tmp_path, scheme):
    path = tmp_path / "own.toml"
    path.write_text(f"scheme = '{scheme}'\nranks = '{ranks_file}'\nspecial_tokens = {{'<|endoftext|>' = 390}}\n")
    tokenizer = tokenization.load(path)
    backend = opened(tokenizer)

    assert backend.check_vocabulary() is None
    assert_equal(backend.encode_batch(TEXTS), tokenizer.encode_batch(TEXTS))


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_with_bytes(make_model, prefix):
    options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": prefix}
    tokenizer = tokenization.load(make_model(model_type="bpe", byte_fallback=True, **options))
    backend = opened(tokenizer)
    texts = sample_documents(200, seed=5)

    assert backend.check(texts) is None
    assert_equal(backend.encode_batch([*texts, "", "<s>"]), tokenizer.encode_batch([*texts, "", "<s>"]))


def test_a_character_that_only_one_of_them_knows_goes_to_the_reference(ranks_file, tmp_path):
    """A digit of Unicode 17: gigatoken 0.10 knows it as one; to tiktoken it is a sign, which a line end may join.

    The vocabulary joins the last byte of that digit and a line end.
    """
    joined = base64.b64encode("\U00011de0".encode()[-1:] + b"\n").decode()
    (tmp_path / "ranks").write_text(f"{ranks_file.read_text()}{joined} 381\n")
    tokenizer = tokenization.load(tmp_path / "ranks")
    trusting = FastBackend(tokenizer, fast_form(tokenizer), FallbackTexts([], []))
    texts = ["plain", "a sign \U00011de0\n", "bcdé\n"]

    assert trusting.check(texts[:1]) is None
    assert trusting.check(texts) is not None
    assert opened(tokenizer).check(texts) is None


@pytest.fixture
def differing(trained):
    """A fast backend that was given a tokenizer.json with one merge too few: `e` and space no longer join first."""
    tokenizer = tokenization.load(trained)
    content = json.loads(fast_form(tokenizer))
    lost = content["model"]["merges"].pop(0)
    del content["model"]["vocab"]["".join(lost)]
    content["model"]["merges"] = [merge for merge in content["model"]["merges"] if "".join(lost) not in merge]
    return tokenizer, FastBackend(tokenizer, json.dumps(content).encode(), FallbackTexts([], []))


def test_other_ids_are_seen_in_the_vocabulary_and_in_texts(differing):
    tokenizer, backend = differing
    text = sample_documents(1)[0]

    difference = backend.check(["", text])

    assert backend.check_vocabulary() is not None
    assert difference is not None
    assert difference.text == text
    expected = tokenizer.encode_batch([text])[0].tolist()
    assert difference.expected == tuple(expected[difference.token : difference.token + 8])
    assert difference.found != difference.expected
    assert f"token {difference.token}" in str(difference)


def test_other_ids_are_seen_while_it_works_in_the_same_one_of_a_thousand_documents(differing):
    _, backend = differing
    texts = [f"{number} and the river, the red door" for number in range(5000)]
    caught = []
    for text in texts:
        try:
            backend.encode_batch([text])
        except BackendsDiffer as error:
            caught.append(error.difference.text)

    assert 1 <= len(caught) <= 20
    with pytest.raises(BackendsDiffer) as failure:
        backend.encode_batch(texts)
    assert failure.value.difference.text == caught[0]


def test_a_text_that_is_lost_whole_is_seen(ranks_file, monkeypatch):
    backend = opened(tokenization.load(ranks_file))
    encode = backend._encode

    def lose_the_second(texts):
        ids, lengths = encode(texts)
        kept = np.arange(lengths.size) != 1
        return ids[np.repeat(kept, lengths)], lengths * kept

    monkeypatch.setattr(backend, "_encode", lose_the_second)
    with pytest.raises(BackendsDiffer) as failure:
        backend.encode_batch(["the river", "a red door", "the miller"])
    assert failure.value.difference.text == "a red door"


def test_four_threads_get_what_one_gets(ranks_file):
    tokenizer = tokenization.load(ranks_file)
    backend = opened(tokenizer)
    batches = [[*sample_documents(200, seed=seed), *random_texts(200, seed=seed)] for seed in range(24)]
    expected = [tokenizer.encode_batch(batch) for batch in batches]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(backend.encode_batch, batches))
        reference = list(pool.map(tokenizer.encode_batch, batches))

    for ours, theirs, right in zip(found, reference, expected, strict=True):
        assert_equal(ours, right)
        assert_equal(theirs, right)


def test_it_starts_anew_when_it_has_grown_and_gives_the_same(ranks_file, monkeypatch):
    tokenizer = tokenization.load(ranks_file)
    backend = opened(tokenizer)
    batches = [sample_documents(50, seed=seed) for seed in range(12)]
    first = backend._gigatoken
    # However much the process gives back of what earlier tests held, it counts as grown.
    monkeypatch.setattr(fast, "_MAX_GROWTH", -(1 << 62))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(backend.encode_batch, batches))

    assert backend._gigatoken is not first
    for ours, batch in zip(found, batches, strict=True):
        assert_equal(ours, tokenizer.encode_batch(batch))


def test_what_gigatoken_does_not_do_or_cannot_read_is_unavailable(tmp_path, make_model, trained):
    from tokenizers import Tokenizer

    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.save(str(tmp_path / "tokenizer.json"))
    unigram = tokenization.load(make_model(model_type="unigram"))
    words = tokenization.load(tmp_path, eod="a")

    with pytest.raises(FastUnavailable, match="this one is WordPiece") as failure:
        FastBackend.open(words)
    assert failure.value.reason == "it does BPE vocabularies, and this one is WordPiece"
    with pytest.raises(FastUnavailable, match="this one is Unigram"):
        FastBackend.open(unigram)
    with pytest.raises(FastUnavailable, match="gigatoken cannot read this tokenizer: Unsupported Replace"):
        FastBackend.open(tokenization.load(make_model(model_type="bpe", byte_fallback=True)))
    own = tokenization.load(trained)
    for content in (b"{}", b"[", b'{"model": {"type": "BPE", "vocab": {"a": 5}, "merges": [["a", "b"]]}}'):
        with pytest.raises(FastUnavailable, match="gigatoken cannot read this tokenizer"):
            FastBackend(own, content, FallbackTexts([], []))


def test_without_gigatoken_it_says_how_to_get_it(trained):
    code = (
        "import sys, tokenization\n"
        "sys.modules['gigatoken'] = None  # as if it were not installed\n"
        "try: tokenization.FastBackend.open(tokenization.load(sys.argv[1]))\n"
        "except tokenization.FastUnavailable as error: print(error.reason)\n"
    )
    finished = run_apart("-c", code, trained)

    assert finished.stdout.startswith("gigatoken is not installed whole: ")
    assert finished.stdout.endswith("(pip install gigatoken)\n")
