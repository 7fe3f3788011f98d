"""A run's settings against the corpora they name."""

import pytest

from toolkit.core.errors import CorpusError, NotAvailableError, SettingsError
from toolkit.settings import load_run, with_corpora
from toolkit.testing.corpora import random_documents, write_token_corpus
from toolkit.testing.runs import write_run


def test_the_vocabulary_is_the_tokenizers(tmp_path):
    settings = with_corpora(load_run(str(write_run(tmp_path))))
    assert settings.model.vocab_size == 97


def test_a_larger_vocabulary_stays(tmp_path):
    settings = with_corpora(load_run(str(write_run(tmp_path)), ["model.vocab_size=128"]))
    assert settings.model.vocab_size == 128


def test_a_vocabulary_below_the_tokenizers_is_refused(tmp_path):
    settings = load_run(str(write_run(tmp_path)), ["model.vocab_size=96"])
    with pytest.raises(SettingsError, match=r"model.vocab_size=96 is smaller than the tokenizer .* 97 ids"):
        with_corpora(settings)


def test_a_missing_corpus_is_named(tmp_path):
    settings = load_run(str(write_run(tmp_path)), [f"data.train={tmp_path / 'nowhere'}"])
    with pytest.raises(CorpusError, match="nowhere"):
        with_corpora(settings)


def test_corpora_of_different_tokenizers_are_refused(tmp_path):
    run_file = write_run(tmp_path)
    documents = random_documents(9, vocabulary_size=50, max_length=90)
    other = write_token_corpus(tmp_path / "other", documents, vocabulary_size=50, eos=0, pad=1, mask=2)
    with pytest.raises(SettingsError, match="different tokenizers"):
        with_corpora(load_run(str(run_file), [f"data.validation={other}"]))


def test_a_blend_is_not_available_yet(tmp_path):
    settings = load_run(str(write_run(tmp_path)), ['data.train=[{path="x", weight=1.0}]'])
    with pytest.raises(NotAvailableError, match="blend"):
        with_corpora(settings)
