"""The first batch of a corpus of 10^13 tokens: soon, in little memory, and every file of it still looked at."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sparse_corpus import write_sparse_corpus
from toolkit.core.errors import CorpusError
from toolkit.data import Corpus, DataSettings, open_rows

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.long
def test_ten_trillion_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is 1 s (see `benchmarks/first_batch.py`, which measures it); here there is room for a busy machine."""
    folder = write_sparse_corpus(tmp_path / "corpus", num_shards=37_253, sequence_length=2048)
    monkeypatch.syspath_prepend(BENCHMARKS)
    benchmark = import_module("first_batch")
    found = [benchmark.apart(benchmark.first_batch, folder) for _ in range(4)]
    assert all(one["tokens"] == 37_253 * 2**28 for one in found)
    assert max(one["resident_mb"] for one in found) < 50
    assert max(one["peak_mb"] for one in found) < 50
    assert min(one["cpu_s"] for one in found) < 1.5


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("thousand") / "corpus"
    return write_sparse_corpus(folder, num_shards=1000, shard_tokens=1 << 20, sequence_length=512)


def test_a_thousand_shards_take_little_memory(thousand: Path) -> None:
    corpus = Corpus(thousand)
    assert corpus.num_tokens == 1000 * 2**20
    assert corpus.manifest.shards[999].name == "shard-00999"
    rows = open_rows(corpus, DataSettings(train=str(thousand), sequence_length=512), seed=0)
    read = rows.read(np.array([0, rows.num_rows - 1]), np.zeros(2, np.int64))
    assert read.tokens_BS.shape == (2, 512)
    assert rows.fill > 0.99


@pytest.mark.parametrize("ending", ["bin", "idx"])
def test_one_missing_file_among_a_thousand_is_named_at_once(thousand: Path, ending: str) -> None:
    path = thousand / f"shard-00500.{ending}"
    path.rename(thousand.parent / "away")
    try:
        with pytest.raises(CorpusError, match=rf"shard-00500\.{ending}"):
            Corpus(thousand)
    finally:
        (thousand.parent / "away").rename(path)
