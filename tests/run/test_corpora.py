"""A run's settings against the corpora they name."""

import pytest

from tests.support.runs import write_run
from toolkit.core.errors import CorpusError, SettingsError
from toolkit.run import load_run
from toolkit.run.resolve import open_run_data
from toolkit.testing.corpora import random_documents, write_token_corpus


def test_the_vocabulary_is_the_tokenizers(tmp_path):
    settings = open_run_data(load_run(str(write_run(tmp_path)))).settings
    assert settings.model.vocab_size == 97


def test_a_larger_vocabulary_stays(tmp_path):
    settings = open_run_data(load_run(str(write_run(tmp_path)), ["model.vocab_size=128"])).settings
    assert settings.model.vocab_size == 128


def test_a_vocabulary_below_the_tokenizers_is_refused(tmp_path):
    settings = load_run(str(write_run(tmp_path)), ["model.vocab_size=96"])
    with pytest.raises(SettingsError, match=r"model.vocab_size=96 is smaller than the tokenizer .* 97 ids"):
        open_run_data(settings)


def test_a_missing_corpus_is_named(tmp_path):
    settings = load_run(str(write_run(tmp_path)), [f"data.train={tmp_path / 'nowhere'}"])
    with pytest.raises(CorpusError, match="nowhere"):
        open_run_data(settings)


def test_corpora_of_different_tokenizers_are_refused(tmp_path):
    run_file = write_run(tmp_path)
    documents = random_documents(9, vocabulary_size=50, max_length=90)
    other = write_token_corpus(tmp_path / "other", documents, vocabulary_size=50, eos=0, pad=1, mask=2)
    with pytest.raises(SettingsError, match="different tokenizers"):
        open_run_data(load_run(str(run_file), [f"data.validation={other}"]))


def _blend(*folders) -> str:
    """`--set data.train=[...]` with these corpora, the second one with weight 2, and so on."""
    entries = ", ".join(f'{{path="{folder}", weight={number}}}' for number, folder in enumerate(folders, start=1))
    return f"data.train=[{entries}]"


def test_a_blend_has_the_vocabulary_of_its_corpora(tmp_path):
    settings = load_run(str(write_run(tmp_path)), [_blend(tmp_path / "corpus", tmp_path / "validation")])
    assert [(entry.path, entry.weight) for entry in settings.data.train] == [
        (str(tmp_path / "corpus"), 1.0),
        (str(tmp_path / "validation"), 2.0),
    ]
    assert open_run_data(settings).settings.model.vocab_size == 97


def test_a_blend_of_different_tokenizers_is_refused_by_both_names(tmp_path):
    run_file = write_run(tmp_path)
    documents = random_documents(9, vocabulary_size=50, max_length=90)
    other = write_token_corpus(tmp_path / "other", documents, vocabulary_size=50, eos=0, pad=1, mask=2)
    with pytest.raises(SettingsError, match="different tokenizers") as refused:
        open_run_data(load_run(str(run_file), [_blend(tmp_path / "corpus", other)]))
    for part in (f"data.train.0.path ({tmp_path / 'corpus'})", f"data.train.1.path ({other})"):
        assert part in str(refused.value)


def test_one_corpus_twice_in_a_blend_is_refused(tmp_path):
    run_file = write_run(tmp_path)
    again = f"{tmp_path}/validation/../corpus/"
    with pytest.raises(SettingsError, match=r"data.train.0.path and data.train.2.path both name"):
        open_run_data(load_run(str(run_file), [_blend(tmp_path / "corpus", tmp_path / "validation", again)]))


def test_a_missing_corpus_of_a_blend_is_named(tmp_path):
    settings = load_run(str(write_run(tmp_path)), [_blend(tmp_path / "corpus", tmp_path / "nowhere")])
    with pytest.raises(CorpusError, match="nowhere"):
        open_run_data(settings)
