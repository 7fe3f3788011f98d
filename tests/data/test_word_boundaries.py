"""Word boundaries that a corpus reads from its tokenizer: when, which, and what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tokenization
from tests.support.text import sample_documents, tiny_tokenizer
from tokenization import word_boundaries
from toolkit.core.errors import CorpusError
from toolkit.data import Corpus
from toolkit.objectives import Draws, build
from toolkit.preprocess.program import preprocess
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.testing.corpora import random_documents, write_token_corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("words")
    lines = [json.dumps({"text": text}) for text in sample_documents(30)]
    (made / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    tokenizer = tiny_tokenizer(made / "tokenizer", vocabulary_size=270)
    preprocess([str(made / "texts.jsonl")], made / "corpus", settings=PreprocessSettings(tokenizer=str(tokenizer)))
    return made / "corpus"


def test_mlm_hides_whole_words_of_a_corpus(folder: Path) -> None:
    corpus, tokenizer = Corpus(folder), tokenization.load(folder)
    tokens_BS = np.array([corpus.shards[0].document(0)[:100]])
    targets = build("mlm", {"unit": "word"}, corpus.vocabulary).build(
        tokens_BS, np.ones_like(tokens_BS), Draws(0, np.arange(1), num_columns=100)
    )
    pieces = [tokenizer.decode([token]) for token in tokens_BS[0]]
    is_hidden = np.isin(np.arange(100), targets.positions_N)
    begins = [
        number == 0 or not (pieces[number][0].isalpha() and pieces[number - 1][-1].isalpha()) for number in range(100)
    ]
    assert 20 < sum(begins) < 80
    assert all(is_hidden[number] == is_hidden[number - 1] for number in range(100) if not begins[number])
    assert 10 < is_hidden.sum() < 90


def test_they_are_found_once_and_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edges = Corpus(folder).vocabulary.words()
    begins_V, ends_V = word_boundaries.word_boundaries(tokenization.load(folder))
    np.testing.assert_array_equal(edges.begins_V, begins_V)
    np.testing.assert_array_equal(edges.ends_V, ends_V)
    assert edges.rule == word_boundaries.WORD_RULE
    monkeypatch.setattr(word_boundaries, "word_boundaries", lambda _: pytest.fail("the tokenizer was read again"))
    np.testing.assert_array_equal(Corpus(folder).vocabulary.words().begins_V, begins_V)
    monkeypatch.setattr(word_boundaries, "WORD_RULE", 2)
    with pytest.raises(pytest.fail.Exception, match="read again"):
        Corpus(folder).vocabulary.words()


def test_a_corpus_without_its_tokenizer_is_refused_where_words_are_asked_for(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copied")
    shutil.rmtree(tmp_path / "copied" / "tokenizer")
    vocabulary = Corpus(tmp_path / "copied").vocabulary
    build("mlm", {}, vocabulary)
    with pytest.raises(CorpusError, match=r"tokenizer/tokenizer\.json, which shows where.*unit = \"token\""):
        build("mlm", {"unit": "word"}, vocabulary)


def test_the_tokenizer_of_another_corpus_is_refused(tmp_path: Path) -> None:
    documents = random_documents(5, vocabulary_size=50)
    first = write_token_corpus(tmp_path / "first", documents, vocabulary_size=50, eos=0, mask=2)
    other = write_token_corpus(tmp_path / "other", documents, vocabulary_size=60, eos=0, mask=2)
    assert Corpus(first).vocabulary.words().begins_V.all()
    shutil.copytree(other / "tokenizer", first / "tokenizer", dirs_exist_ok=True)
    with pytest.raises(CorpusError, match=r"is not the tokenizer of this corpus"):
        Corpus(first).vocabulary.words()
