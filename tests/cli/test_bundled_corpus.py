"""Runs that name the bundled corpus get it made; a folder with another name is never filled."""

from pathlib import Path

import pytest

from toolkit.core.errors import CorpusError
from toolkit.data import Corpus
from toolkit.preprocess.bundled import prepare_if_named
from toolkit.run import load_run


def test_it_is_made_once_and_only_where_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare_if_named(load_run("smoke", ["data.train=elsewhere"]).data)
    assert not Path("elsewhere").exists()
    with pytest.raises(CorpusError, match="elsewhere"):
        Corpus("elsewhere")
    prepare_if_named(load_run("smoke").data)
    made = Path("runs/quickstart/corpus/corpus.json")
    before = made.stat().st_mtime_ns
    assert Corpus(made.parent).num_documents == 4020
    prepare_if_named(load_run("smoke").data)
    assert made.stat().st_mtime_ns == before
    assert Corpus("runs/quickstart/corpus/validation").num_documents == 180
