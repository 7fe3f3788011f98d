"""The summary of all packing plans: a copy of what the plans say, never trusted beyond that."""

from pathlib import Path

import numpy as np
import pytest

from toolkit.core.errors import CorpusError
from toolkit.core.files import cache_folder
from toolkit.data import Corpus, DataSettings, Rows, open_rows
from toolkit.data.rows.plan import PlanSizes
from toolkit.data.rows.plan_summary import PlanTable, SummaryKey, read_summary, write_summary
from toolkit.testing.corpora import random_documents, write_token_corpus

KEY = SummaryKey("ab" * 32, 3, 64, 12)
TABLE = PlanTable.of([PlanSizes(5, 9, 300), PlanSizes(0, 0, 0), PlanSizes(2**40, 2**41, 2**46)])


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of four shards, with a summary as if there were many."""
    monkeypatch.setattr("toolkit.data.rows.plan_store._FEWEST_SHARDS_SUMMARISED", 4)
    documents = random_documents(200, vocabulary_size=100)
    return write_token_corpus(tmp_path / "corpus", documents, vocabulary_size=100, shards=4)


def _open(folder: Path) -> Rows:
    return open_rows(Corpus(folder), DataSettings(train=str(folder), sequence_length=64), seed=0)


def _read_all(rows: Rows) -> bytes:
    numbers = np.arange(rows.num_rows)
    found = rows.read(numbers, numbers * 0)
    return found.tokens_BS.tobytes() + found.segments_BS.tobytes()


def _summary(folder: Path) -> Path:
    (path,) = folder.glob("plans-*")
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_summary(tmp_path / "s", KEY, TABLE)
    found = read_summary(tmp_path / "s", KEY)
    assert found is not None
    assert [found.sizes(number) for number in range(3)] == [TABLE.sizes(number) for number in range(3)]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_summary(path, KEY, TABLE)
    intact = path.read_bytes()
    for position in range(len(intact)):
        path.write_bytes(intact[:position] + bytes([intact[position] ^ 4]) + intact[position + 1 :])
        assert read_summary(path, KEY) is None, position
    for damaged in (b"", intact[:40], intact[:-1], intact + b"\x00"):
        path.write_bytes(damaged)
        assert read_summary(path, KEY) is None
    assert read_summary(tmp_path / "nothing", KEY) is None


@pytest.mark.parametrize(
    "other", [SummaryKey("ac" * 32, 3, 64, 12), SummaryKey("ab" * 32, 3, 65, 12), SummaryKey("ab" * 32, 3, 64, 11)]
)
def test_a_summary_of_something_else_is_not_taken(tmp_path: Path, other: SummaryKey) -> None:
    write_summary(tmp_path / "s", KEY, TABLE)
    assert read_summary(tmp_path / "s", other) is None
    assert other.file_name != KEY.file_name


def test_the_second_opening_reads_no_plan(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _open(corpus)
    monkeypatch.setattr("toolkit.data.rows.plan_store.read_sizes", None)
    second = _open(corpus)
    assert (second.num_rows, second.num_tokens, second.fill) == (first.num_rows, first.num_tokens, first.fill)


@pytest.mark.parametrize("damage", ["header", "body", "gone"])
def test_a_damaged_summary_is_made_again(corpus: Path, damage: str) -> None:
    expected = _read_all(_open(corpus))
    path = _summary(corpus)
    intact = path.read_bytes()
    position = {"header": 3, "body": 90, "gone": 0}[damage]
    path.write_bytes(intact[:position] + b"\xff" + intact[position + 1 :])
    if damage == "gone":
        path.unlink()
    assert _read_all(_open(corpus)) == expected
    assert _summary(corpus).read_bytes() == intact


def test_a_plan_that_is_missing_is_made_before_the_first_row(corpus: Path) -> None:
    expected = _read_all(_open(corpus))
    (plan,) = corpus.glob("shard-00002.plan-*")
    intact = plan.read_bytes()
    for change in (plan.unlink, lambda: plan.write_bytes(intact[:-8])):
        change()
        rows = _open(corpus)
        assert plan.read_bytes() == intact
        assert _read_all(rows) == expected


def test_a_summary_that_contradicts_a_plan_is_refused(corpus: Path) -> None:
    """Nothing but intent makes one: its own hash is right, and so is the plan's."""
    store_rows = _open(corpus)
    key = SummaryKey(Corpus(corpus).manifest.manifest_sha256, 4, 64, 12)
    table = read_summary(_summary(corpus), key)
    assert table is not None
    # Fewer tokens change no size of a file.
    write_summary(_summary(corpus), key, PlanTable(table.num_rows, table.num_pieces, table.num_tokens - 1))
    rows = _open(corpus)
    assert rows.num_tokens == store_rows.num_tokens - 4
    with pytest.raises(CorpusError, match="other numbers of rows than the summary of all plans, plans-S64-m12-v1"):
        _read_all(rows)


def test_where_the_corpus_cannot_be_written_it_goes_to_the_cache(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the place of the summary is taken by a folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected = _read_all(_open(corpus))
    path = _summary(corpus)
    path.unlink()
    path.mkdir()
    for _ in range(2):
        assert _read_all(_open(corpus)) == expected
    assert [found.name for found in cache_folder().glob("plans-*")] == [path.name]


def test_a_few_shards_need_no_summary(tmp_path: Path) -> None:
    write_token_corpus(tmp_path, random_documents(30, vocabulary_size=100), vocabulary_size=100, shards=3)
    _open(tmp_path)
    assert list(tmp_path.glob("plans-*")) == []
