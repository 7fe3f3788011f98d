"""Corpora of object storage in a cache: equal rows, no more room than allowed, nothing fetched twice."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import fsspec
import numpy as np
import pytest

from toolkit.core.errors import CorpusError, SettingsError, UserError
from toolkit.core.files import cache_folder
from toolkit.data import Corpus, DataSettings, open_rows, write_manifest
from toolkit.storage import ShardCache, cache, put
from toolkit.testing.corpora import random_documents, write_token_corpus

SHARDS = 6


@pytest.fixture
def corpus(tmp_path: Path, bucket: str) -> tuple[Path, str]:
    """A corpus of six shards, here and in the store."""
    documents = random_documents(60, vocabulary_size=90, max_length=40, first_id=3, seed=1)
    folder = write_token_corpus(tmp_path / "corpus", documents, vocabulary_size=90, eos=0, pad=1, shards=SHARDS)
    _upload(folder, f"{bucket}/corpus")
    return folder, f"{bucket}/corpus"


def _upload(folder: Path, url: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            put(path, f"{url}/{path.relative_to(folder)}")


def _open(url: str, *, most_bytes: int | None = None, num_sharers: int = 1) -> Corpus:
    source = ShardCache(most_bytes=most_bytes, num_sharers=num_sharers).corpus(url)
    return Corpus(source.folder, source=source)


def _bin_bytes() -> int:
    return sum(path.stat().st_size for path in cache_folder().rglob("*.bin"))


def _largest(folder: Path) -> int:
    return max(path.stat().st_size for path in folder.glob("*.bin"))


@pytest.mark.parametrize("windows", ["documents", "blocks"])
@pytest.mark.parametrize("shards_kept", [1, 2, SHARDS])
def test_rows_are_those_of_the_folder(corpus: tuple[Path, str], windows: str, shards_kept: int) -> None:
    folder, url = corpus
    settings = DataSettings.model_validate({"train": "x", "sequence_length": 32, "windows": windows})
    bound = _largest(folder) * shards_kept
    here, there = (open_rows(found, settings, seed=0) for found in (Corpus(folder), _open(url, most_bytes=bound)))
    order = np.random.default_rng(0).permutation(np.arange(3 * here.num_rows) % here.num_rows)
    assert here.num_rows == there.num_rows
    for rows_B in np.array_split(order, 20):
        ours, theirs = here.read(rows_B, rows_B * 0), there.read(rows_B, rows_B * 0)
        np.testing.assert_array_equal(ours.tokens_BS, theirs.tokens_BS)
        np.testing.assert_array_equal(ours.segments_BS, theirs.segments_BS)
        assert _bin_bytes() <= bound


def test_plans_are_made_without_the_tokens(corpus: tuple[Path, str]) -> None:
    open_rows(_open(corpus[1]), DataSettings(train="x", sequence_length=32), seed=0)
    assert _bin_bytes() == 0


def test_what_another_process_reads_is_not_removed(corpus: tuple[Path, str]) -> None:
    """Two caches of one folder, as two ranks have: each keeps a shard, of three that there is room for."""
    folder, url = corpus
    bound = 3 * _largest(folder)
    ours, theirs = (_open(url, most_bytes=bound, num_sharers=3) for _ in range(2))
    first = ours.shards[0]
    for number in (1, 2, 3, 4, 5, 1):
        theirs.shards[number]
        assert _bin_bytes() <= bound
        assert Path(f"{first.prefix}.bin").exists()
    ours.shards[1]
    for number in (2, 3, 4):
        theirs.shards[number]
    assert not Path(f"{first.prefix}.bin").exists()


def _read_all(url: str, all_have_read: Barrier) -> None:
    corpus = _open(url)
    for number in range(SHARDS):
        _ = corpus.shards[number]
    # As a rank does that waits for another in a collective: all shards stay open.
    all_have_read.wait(30)


def test_processes_fetch_each_object_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = random_documents(60, vocabulary_size=90, max_length=40, first_id=3, seed=1)
    folder = write_token_corpus(tmp_path / "corpus", documents, vocabulary_size=90, eos=0, pad=1, shards=SHARDS)
    log, whole = tmp_path / "log", cache.download

    def logged(url: str, *given: object, **options: object) -> None:
        with log.open("a") as file:
            file.write(f"{Path(url).name}\n")
        whole(url, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(cache, "download", logged)
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(4)
    processes = [fork.Process(target=_read_all, args=(f"file://{folder}", barrier)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    fetched = sorted(log.read_text().split())
    assert fetched == sorted({path.name for path in folder.rglob("*") if path.is_file()} - {"corpus.json"})


def test_what_a_killed_process_was_fetching_makes_room(corpus: tuple[Path, str]) -> None:
    folder, url = corpus
    opened = _open(url, most_bytes=_largest(folder))
    (opened.path / ".shard-00003.bin.partial").write_bytes(bytes(_largest(folder)))
    _ = opened.shards[0]
    assert not (opened.path / ".shard-00003.bin.partial").exists()


def test_what_a_killed_process_had_of_the_same_shard_takes_no_room(corpus: tuple[Path, str]) -> None:
    folder, url = corpus
    opened = _open(url, most_bytes=2 * _largest(folder), num_sharers=2)  # one stays open
    _ = opened.shards[1]
    (opened.path / ".shard-00000.bin.partial").write_bytes(bytes(_largest(folder)))
    _ = opened.shards[0]
    assert (opened.path / "shard-00001.bin").exists()


def test_what_was_read_longest_ago_makes_room(corpus: tuple[Path, str]) -> None:
    folder, url = corpus
    opened = _open(url, most_bytes=3 * _largest(folder), num_sharers=3)  # one stays open
    for number in (0, 1, 2, 0, 3):
        _ = opened.shards[number]
    there = {path.name for path in opened.path.glob("*.bin")}
    assert {"shard-00000.bin", "shard-00003.bin"} <= there
    assert "shard-00001.bin" not in there


def _broken(name: str) -> Callable[[str], None]:
    def spoil(url: str) -> None:
        store, path = fsspec.core.url_to_fs(f"{url}/{name}")
        content = bytearray(store.cat_file(path))
        content[len(content) // 2] ^= 1
        store.pipe_file(path, bytes(content))

    return spoil


def _gone(name: str) -> Callable[[str], None]:
    def spoil(url: str) -> None:
        store, path = fsspec.core.url_to_fs(f"{url}/{name}")
        store.rm(path)

    return spoil


def _short(name: str) -> Callable[[str], None]:
    def spoil(url: str) -> None:
        store, path = fsspec.core.url_to_fs(f"{url}/{name}")
        store.pipe_file(path, store.cat_file(path)[:-2])

    return spoil


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_broken("shard-00001.bin"), "memory://bucket/corpus/shard-00001.bin is damaged: expected SHA-256"),
        (_broken("shard-00001.idx"), "memory://bucket/corpus/shard-00001.idx is damaged: expected SHA-256"),
        (_broken("tokenizer/tokenizer.json"), "memory://bucket/corpus/tokenizer/tokenizer.json is damaged"),
        (_gone("shard-00001.bin"), "memory://bucket/corpus/shard-00001.bin, which corpus.json names, does not exist"),
        (_short("shard-00001.bin"), "memory://bucket/corpus/shard-00001.bin is damaged: expected"),
        (_gone("corpus.json"), "no corpus at memory://bucket/corpus"),
    ],
    ids=["bin", "idx", "tokenizer", "gone", "short", "manifest"],
)
def test_damage_is_named(corpus: tuple[Path, str], spoil: Callable[[str], None], told: str) -> None:
    spoil(corpus[1])
    errors = list[object]()
    for _ in range(2):
        # The first error is kept, as a rank does until the others know, and holds no lock.
        with pytest.raises(UserError, match=told) as kept:
            _ = _open(corpus[1]).shards[1]
        errors.append(kept)
    assert not list(cache_folder().rglob("*.partial"))


def test_a_cache_without_room_for_a_shard_of_each_rank(corpus: tuple[Path, str]) -> None:
    folder, url = corpus
    opened = _open(url, most_bytes=2 * _largest(folder) - 1, num_sharers=2)
    largest = max(range(SHARDS), key=lambda number: opened.manifest.shards[number].tokens)
    with pytest.raises(SettingsError, match=r"2 ranks of this machine keep a shard .* Set run\.cache_gb higher"):
        _ = opened.shards[largest]


def test_shards_elsewhere_are_refused(tmp_path: Path, bucket: str, corpus: tuple[Path, str]) -> None:
    manifest = Corpus(corpus[0]).manifest
    outside = [{**entry, "name": str(tmp_path / "corpus" / str(entry["name"]))} for entry in manifest.table.as_dicts()]
    write_manifest(corpus[0], manifest.model_validate({**manifest.model_dump(), "shards": outside}))
    _upload(corpus[0], f"{bucket}/corpus")
    with pytest.raises(CorpusError, match="does not exist"):
        _open(corpus[1])
