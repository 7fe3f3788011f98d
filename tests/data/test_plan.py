"""Packing plans: written once, found again, made anew when damaged, by one process at a time, also read-only."""

import multiprocessing
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from toolkit.core.errors import CorpusError
from toolkit.data import Corpus, DataSettings, open_rows
from toolkit.data.rows.plan import PlanKey, is_intact, map_plan, read_sizes, write_plan
from toolkit.testing.corpora import random_documents, write_token_corpus

KEY = PlanKey("ab" * 32, 64, 4)
LENGTHS = np.random.default_rng(0).integers(0, 300, 2000)
NOBODY = 65534


def _write_corpus(folder: Path, num_documents: int = 200) -> Path:
    documents = random_documents(num_documents, vocabulary_size=100)
    return write_token_corpus(folder, documents, vocabulary_size=100, shards=2)


def _read_all(folder: Path, **keywords: Path) -> bytes:
    rows = open_rows(Corpus(folder), DataSettings(train=str(folder), sequence_length=64), seed=0, **keywords)
    numbers = np.arange(rows.num_rows)
    found = rows.read(numbers, numbers * 0)
    return found.tokens_BS.tobytes() + found.segments_BS.tobytes()


def _plans(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if ".plan-" in path.name)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    sizes = write_plan(tmp_path / "plan", KEY, document_lengths=LENGTHS)
    assert read_sizes(tmp_path / "plan", KEY) == sizes
    assert is_intact(tmp_path / "plan", KEY)
    plan = map_plan(tmp_path / "plan", sizes)
    assert plan.row_starts.size == sizes.num_rows + 1
    assert plan.lengths.sum() == sizes.num_tokens
    whole, rest = np.divmod(LENGTHS, 64)
    assert sizes.num_pieces == whole.sum() + (rest >= 4).sum()
    assert sizes.num_tokens == LENGTHS.sum() - rest[rest < 4].sum()
    assert np.add.reduceat(plan.lengths, plan.row_starts[:-1]).max() <= 64
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_many_blocks_of_pieces_make_one_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_plan(tmp_path / "whole", KEY, document_lengths=LENGTHS)
    monkeypatch.setattr("toolkit.data.rows.plan._MOST_PIECES_AT_ONCE", 1000)
    sizes = write_plan(tmp_path / "blocks", KEY, document_lengths=LENGTHS)
    assert (sizes.num_pieces, sizes.num_tokens) == (whole.num_pieces, whole.num_tokens)
    assert whole.num_rows <= sizes.num_rows <= whole.num_rows * 1.01
    plan, expected = map_plan(tmp_path / "blocks", sizes), map_plan(tmp_path / "whole", whole)
    order, expected_order = np.argsort(plan.firsts), np.argsort(expected.firsts)
    np.testing.assert_array_equal(plan.firsts[order], expected.firsts[expected_order])
    np.testing.assert_array_equal(plan.lengths[order], expected.lengths[expected_order])
    assert np.all(np.diff(plan.row_starts) > 0)


def test_it_is_the_same_file_every_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_plan(tmp_path / name, KEY, document_lengths=LENGTHS)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@pytest.mark.parametrize("other", [PlanKey("ac" * 32, 64, 4), PlanKey("ab" * 32, 65, 4), PlanKey("ab" * 32, 64, 5)])
def test_a_plan_of_something_else_is_not_taken(tmp_path: Path, other: PlanKey) -> None:
    write_plan(tmp_path / "plan", KEY, document_lengths=LENGTHS)
    assert read_sizes(tmp_path / "plan", other) is None
    assert other.file_name("s") != KEY.file_name("s")


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    write_plan(path, KEY, document_lengths=LENGTHS[:20])
    intact = path.read_bytes()
    for position in range(len(intact)):
        path.write_bytes(intact[:position] + bytes([intact[position] ^ 16]) + intact[position + 1 :])
        assert not is_intact(path, KEY), position
    for damaged in (b"", intact[:50], intact[:-1], intact + b"\x00"):
        path.write_bytes(damaged)
        assert read_sizes(path, KEY) is None


def test_it_is_written_once(tmp_path: Path) -> None:
    _write_corpus(tmp_path)
    first = _read_all(tmp_path)
    made = [(path.name, path.stat().st_mtime_ns) for path in _plans(tmp_path)]
    assert [name.split(".plan-S64-m12-")[0] for name, _ in made] == ["shard-00000", "shard-00001"]
    assert _read_all(tmp_path) == first
    assert [(path.name, path.stat().st_mtime_ns) for path in _plans(tmp_path)] == made


@pytest.mark.parametrize("position", [10, 130, 200, -1])
def test_a_damaged_plan_is_made_again(tmp_path: Path, position: int) -> None:
    _write_corpus(tmp_path)
    expected = _read_all(tmp_path)
    path = _plans(tmp_path)[1]
    intact = path.read_bytes()
    damaged = bytearray(intact)
    damaged[position] ^= 0xFF
    path.write_bytes(damaged)
    assert _read_all(tmp_path) == expected
    assert path.read_bytes() == intact


def test_an_index_that_is_not_the_one_of_the_manifest_is_named(tmp_path: Path) -> None:
    """Lengths that still follow one another: only the hash shows that they are not what was written."""
    write_token_corpus(tmp_path, [np.arange(20), np.arange(30)], vocabulary_size=100)
    other = write_token_corpus(tmp_path / "other", [np.arange(30), np.arange(20)], vocabulary_size=100)
    shutil.copy(other / "shard-00000.idx", tmp_path / "shard-00000.idx")
    with pytest.raises(CorpusError, match=r"shard-00000\.idx is damaged: its hash"):
        _read_all(tmp_path)


def _race(folder: Path, barrier: Barrier, results: multiprocessing.Queue) -> None:
    barrier.wait()
    results.put(_read_all(folder))


def test_two_processes_racing_for_the_plan_get_the_same_rows(tmp_path: Path) -> None:
    _write_corpus(tmp_path, num_documents=5000)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    racers = [context.Process(target=_race, args=(tmp_path, barrier, results)) for _ in range(2)]
    for racer in racers:
        racer.start()
    found = [results.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join()
    assert found[0] == found[1] == _read_all(tmp_path)
    assert len(_plans(tmp_path)) == 2
    assert not list(tmp_path.glob(".*.partial"))


@pytest.fixture
def read_only_corpus() -> Iterator[Path]:
    # Not in tmp_path, which only its owner may enter: root may write anywhere, so the reader must be someone else.
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    folder = _write_corpus(base / "corpus")
    (base / "home").mkdir(mode=0o777)
    (base / "home").chmod(0o777)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(base)


def _read_as_someone_else(folder: Path, cache: Path, results: multiprocessing.Queue) -> None:
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    os.environ["XDG_CACHE_HOME"] = str(cache)
    try:
        results.put(_read_all(folder))
    except CorpusError as error:
        results.put(str(error))


def _in_child(folder: Path, cache: Path) -> bytes | str:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_read_as_someone_else, args=(folder, cache, results))
    child.start()
    found = results.get(timeout=60)
    child.join()
    return found


def test_a_read_only_corpus_has_its_plan_in_the_cache(read_only_corpus: Path, tmp_path: Path) -> None:
    home = read_only_corpus.parent / "home"
    found = _in_child(read_only_corpus, home)
    assert _plans(read_only_corpus) == []
    cache = home / "encoder-pretraining-toolkit"
    assert len(_plans(cache)) == 2
    assert _in_child(read_only_corpus, home) == found
    shutil.copytree(read_only_corpus, tmp_path / "writable")
    (tmp_path / "writable").chmod(0o755)
    assert _read_all(tmp_path / "writable") == found


def test_who_packs_many_shards_says_on_which_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("toolkit.data.rows.plan_store._FEWEST_SHARDS_SHOWN", 2)
    monkeypatch.setattr("toolkit.core.console._SECONDS_BETWEEN_LINES", 0)
    folder = _write_corpus(tmp_path / "corpus")
    _read_all(folder)
    assert f"Packing rows of {folder} on {socket.gethostname()}: 1/2 shards" in capsys.readouterr().out


def test_nowhere_to_write_the_plan_says_so(read_only_corpus: Path) -> None:
    found = _in_child(read_only_corpus, read_only_corpus)
    assert isinstance(found, str)
    assert "cannot be written" in found
    assert "XDG_CACHE_HOME" in found


def test_a_plan_beside_the_corpus_is_used_before_the_cache(read_only_corpus: Path) -> None:
    read_only_corpus.chmod(0o755)
    expected = _read_all(read_only_corpus)
    read_only_corpus.chmod(0o555)
    assert _in_child(read_only_corpus, read_only_corpus.parent / "home") == expected
    assert list((read_only_corpus.parent / "home").iterdir()) == []
