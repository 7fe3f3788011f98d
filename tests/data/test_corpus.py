"""A corpus folder: what opening it checks, and what it says about ids."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.apart import run_apart
from toolkit.core.errors import CorpusError
from toolkit.core.types import Vocabulary
from toolkit.data import Corpus
from toolkit.testing.corpora import random_documents, write_token_corpus

DOCUMENTS = random_documents(40, vocabulary_size=50, max_length=30)


def _write(folder: Path, **special: int) -> Path:
    return write_token_corpus(folder, DOCUMENTS, vocabulary_size=52, shards=3, **special)


def test_a_blend_of_many_shards_stays_below_the_limit_of_open_files(tmp_path: Path) -> None:
    """Four corpora of 60 shards and 60 plans would map 480 files; the system allows 160 here."""
    write_token_corpus(tmp_path, [np.arange(20)] * 60, vocabulary_size=100, shards=60)
    code = """if True:
        import os, resource, sys
        import numpy as np
        from toolkit.data import Blend, Corpus, DataSettings, Order, RowStream, open_rows
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 160))
        settings = DataSettings(train=sys.argv[1], sequence_length=20)
        rows = [open_rows(Corpus(sys.argv[1]), settings, seed=0) for _ in range(4)]
        parts = [(some, Order(some.num_rows, seed=number, shuffle="global")) for number, some in enumerate(rows)]
        stream = RowStream.of_blend(parts, Blend([1, 1, 1, 1], seed=0))
        read = stream.at(np.arange(240))
        print(read.tokens_BS.sum(), len(os.listdir("/proc/self/fd")) < 120, *resource.getrlimit(resource.RLIMIT_NOFILE))
    """
    done = run_apart("-c", code, tmp_path)
    assert (done.stdout.split(), done.returncode) == ([str(240 * 190), "True", "160", "160"], 0), done.stderr


def test_documents_come_back_in_order(tmp_path: Path) -> None:
    corpus = Corpus(_write(tmp_path))
    found = [shard.document(number) for shard in corpus.shards for number in range(shard.num_documents)]
    assert [document.tolist() for document in found] == [document.tolist() for document in DOCUMENTS]
    assert corpus.num_documents == 40
    assert corpus.num_tokens == sum(document.size for document in DOCUMENTS)
    assert corpus.tokenizer_folder == tmp_path / "tokenizer"
    assert [shard.num_documents for shard in corpus.shards[1:]] == [13, 14]


def test_its_vocabulary(tmp_path: Path) -> None:
    assert Corpus(_write(tmp_path, bos=1, eos=2, pad=3, mask=51)).vocabulary == Vocabulary(
        size=52, mask_id=51, pad_id=3, bos_id=1, eos_id=2, special_ids=(1, 2, 3, 51)
    )


@pytest.mark.parametrize(("special", "pad_id"), [({"pad": 3, "eos": 2}, 3), ({"eos": 2}, 2), ({}, 0), ({"pad": 0}, 0)])
def test_padding_is_pad_else_eos_else_zero(tmp_path: Path, special: dict[str, int], pad_id: int) -> None:
    assert Corpus(_write(tmp_path, **special)).vocabulary.pad_id == pad_id


def test_different_tokenizers_have_different_fingerprints(tmp_path: Path) -> None:
    first, second = (Corpus(_write(tmp_path / str(eos), eos=eos)) for eos in (1, 2))
    assert first.fingerprint != second.fingerprint


@pytest.mark.parametrize("name", ["shard-00001.bin", "shard-00002.idx"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (_write(tmp_path) / name).unlink()
    with pytest.raises(CorpusError, match=name):
        Corpus(tmp_path)


def test_where_sizes_are_trusted_a_missing_file_is_named_when_it_is_opened(tmp_path: Path) -> None:
    (_write(tmp_path) / "shard-00001.bin").unlink()
    corpus = Corpus(tmp_path, sizes="trust")
    assert corpus.shards[0].document(0).tolist() == DOCUMENTS[0].tolist()
    with pytest.raises(CorpusError, match=r"shard-00001\.bin"):
        _ = corpus.shards[1]


def test_a_shard_of_another_corpus_is_named(tmp_path: Path) -> None:
    _write(tmp_path / "mine")
    tokens = np.concatenate(DOCUMENTS[:13])
    write_token_corpus(tmp_path / "other", [tokens], vocabulary_size=52)
    for ending in ("bin", "idx"):
        (tmp_path / f"other/shard-00000.{ending}").replace(tmp_path / f"mine/shard-00000.{ending}")
    with pytest.raises(CorpusError, match=r"shard-00000\.idx does not belong to this corpus"):
        _ = Corpus(tmp_path / "mine").shards[0]
