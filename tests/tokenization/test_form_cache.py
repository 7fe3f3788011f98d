"""Converted tokenizers are kept: the same ids from the cache, and never a damaged or another tokenizer."""

import shutil

import numpy as np
import pytest

import tokenization
from tests.support.text import sample_documents
from tokenization.formats import sentencepiece_form, tiktoken_ranks

TEXTS = [*sample_documents(30, seed=8), "日本語 🙂 <|begin_of_text|></s>", " ", "\n\n  x"]


@pytest.fixture
def conversions(monkeypatch):
    """The name of each conversion that is made."""
    made: list[str] = []
    for module, function in ((tiktoken_ranks, "_hugging_face_json"), (sentencepiece_form, "_hugging_face_form")):
        original = getattr(module, function)

        def count(*given, original=original, function=function):
            made.append(function)
            return original(*given)

        monkeypatch.setattr(module, function, count)
    return made


@pytest.fixture(params=["ranks", "bpe", "unigram"])
def path(request, ranks_file, make_model):
    return ranks_file if request.param == "ranks" else make_model(model_type=request.param)


def _ids(tokenizer):
    return tokenizer.encode_batch(TEXTS)[0]


def test_a_cached_form_is_what_was_converted(path, tmp_path, conversions):
    plain = tokenization.load(path)
    first = tokenization.load(path, cache_folder=tmp_path)
    assert len(conversions) == 2
    again = tokenization.load(path, cache_folder=tmp_path)

    assert len(conversions) == 2
    assert np.array_equal(_ids(again), _ids(plain))
    assert again.fingerprint == first.fingerprint == plain.fingerprint
    assert again.source_digest == first.source_digest == plain.source_digest
    assert again.files == first.files == plain.files
    assert (again.special_ids, again.eod_id, again.kind) == (plain.special_ids, plain.eod_id, plain.kind)


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-100], lambda content: content.replace(b'"vocab"', b'"vocal"'), lambda _: b""]
)
def test_a_damaged_file_is_converted_again(ranks_file, tmp_path, conversions, damage):
    expected = tokenization.load(ranks_file, cache_folder=tmp_path)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))

    again = tokenization.load(ranks_file, cache_folder=tmp_path)

    assert len(conversions) == 2
    assert np.array_equal(_ids(again), _ids(expected))
    assert kept.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [kept]


def test_another_spec_or_library_has_a_form_of_its_own(ranks_file, tmp_path, monkeypatch, conversions):
    shutil.copy(ranks_file, tmp_path / "small.ranks")
    spec = tmp_path / "spec.toml"
    spec.write_text('scheme = "cl100k_base"\nranks = "small.ranks"\nspecial_tokens = ["<|end|>"]\neos = "<|end|>"\n')
    cache = tmp_path / "cache"
    tokenization.load(ranks_file, cache_folder=cache)
    tokenization.load(spec, cache_folder=cache)
    monkeypatch.setattr("tokenization.form_cache._VERSION", 0)
    tokenization.load(ranks_file, cache_folder=cache)

    assert len(conversions) == len(list(cache.iterdir())) == 3


def test_a_cache_that_cannot_be_written_only_costs_time(ranks_file, tmp_path, conversions):
    (tmp_path / "file").write_text("")

    for _ in range(2):
        assert _ids(tokenization.load(ranks_file, cache_folder=tmp_path / "file")).size
    assert len(conversions) == 2
