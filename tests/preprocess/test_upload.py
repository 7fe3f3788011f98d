"""Corpora for object storage: what is uploaded, in which order, and what a kill costs."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from toolkit.core.errors import UserError
from toolkit.core.files import cache_folder, hash_folder
from toolkit.data import Corpus
from toolkit.data.corpus.manifest import CorpusManifest, read_manifest
from toolkit.preprocess import upload
from toolkit.preprocess.upload import write_to
from toolkit.storage import ShardCache, put
from toolkit.testing.corpora import random_documents, write_token_corpus

URL = "memory://bucket/corpus"


class Writer:
    """Writes a corpus with a holdout and a packing plan, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> int:
        self.calls += 1
        documents = random_documents(30, vocabulary_size=90, max_length=40, first_id=3, seed=1)
        for place in (folder / "holdout", folder):
            write_token_corpus(place, documents, vocabulary_size=90, eos=0, pad=1, shards=3)
        (folder / "shard-00000.plan-S64").write_bytes(b"made again")
        return self.calls


@pytest.fixture
def put_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names below the URL, in the order in which they were put; the store is empty before and after."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store, names = fsspec.filesystem("memory"), list[str]()
    store.store.clear()

    def noted(path: Path, url: str) -> None:
        put(path, url)
        names.append(url.removeprefix(f"{URL}/"))

    monkeypatch.setattr(upload, "put", noted)
    yield names
    store.store.clear()


def _never(folder: Path) -> CorpusManifest | None:
    return None


def _always(folder: Path) -> CorpusManifest | None:
    return read_manifest(folder)


def _there(tmp_path: Path) -> dict[str, str]:
    copy = tmp_path / "copy"
    fsspec.filesystem("memory").get("/bucket/corpus", str(copy), recursive=True)
    return hash_folder(copy)


def test_a_corpus_is_uploaded_with_its_manifest_last(tmp_path: Path, put_names: list[str]) -> None:
    assert write_to(f"{URL}/", Writer(), command=[], made_before=_never) == 1
    Writer()(tmp_path / "local")
    (tmp_path / "local" / "shard-00000.plan-S64").unlink()
    assert _there(tmp_path) == hash_folder(tmp_path / "local")
    assert put_names[-2:] == ["holdout/corpus.json", "corpus.json"]
    assert not list((cache_folder() / "staging").iterdir())
    opened = ShardCache(most_bytes=None, num_sharers=1).corpus(URL)
    assert Corpus(opened.folder, source=opened).shards[2].num_documents == 10
    with pytest.raises(UserError, match="memory://bucket/corpus holds a finished corpus: name another place"):
        write_to(URL, Writer(), command=[], made_before=_never)


def test_an_upload_goes_on_where_it_was(tmp_path: Path, put_names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write, noted = Writer(), upload.put

    def killed(path: Path, url: str) -> None:
        if len(put_names) >= 5:
            raise KeyboardInterrupt
        noted(path, url)

    monkeypatch.setattr(upload, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        write_to(URL, write, command=["a"], made_before=_always)
    monkeypatch.setattr(upload, "put", noted)
    assert write_to(URL, write, command=["a"], made_before=_always) is None
    assert (write.calls, len(put_names), len(set(put_names))) == (1, 18, 18)
    Writer()(tmp_path / "local")
    (tmp_path / "local" / "shard-00000.plan-S64").unlink()
    assert _there(tmp_path) == hash_folder(tmp_path / "local")


def test_a_corpus_of_other_sources_is_not_uploaded(
    tmp_path: Path, put_names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, noted = Writer(), upload.put

    def failed(path: Path, url: str) -> None:
        raise OSError("away")

    monkeypatch.setattr(upload, "put", failed)
    with pytest.raises(OSError, match="away"):
        write_to(URL, write, command=["a"], made_before=_never)
    (staged,) = (cache_folder() / "staging").iterdir()
    (staged / "shard-00009.bin").write_bytes(b"of the other sources")
    monkeypatch.setattr(upload, "put", noted)
    assert write_to(URL, write, command=["a"], made_before=_never) == 2
    assert "shard-00009.bin" not in put_names


def test_a_folder_is_written_where_it_is(tmp_path: Path, put_names: list[str]) -> None:
    assert write_to(str(tmp_path / "here"), Writer(), command=[], made_before=_never) == 1
    assert (tmp_path / "here" / "corpus.json").exists()
    assert put_names == []
