"""The three ways to make rows, on tokens that say where they come from."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from toolkit.core.errors import CorpusError
from toolkit.data import Corpus, DataSettings, Rows, TokenRows, open_rows, tokens_left_out
from toolkit.testing.corpora import random_documents, write_token_corpus

PAD = 99


def _open(folder: Path, *, seed: int = 0, **settings: object) -> Rows:
    return open_rows(Corpus(folder), DataSettings(train=str(folder), **settings), seed=seed)


def _read(rows: Rows, numbers: list[int], epoch: int = 0) -> TokenRows:
    return rows.read(np.array(numbers, np.int64), np.full(len(numbers), epoch, np.int64))


def _read_all(rows: Rows, epoch: int = 0) -> TokenRows:
    return _read(rows, list(range(rows.num_rows)), epoch)


def _count_up(folder: Path, lengths: list[int], **keywords: int) -> Path:
    """Documents 0 1 2 | 3 4 ...: each token is its place in the corpus."""
    edges = np.cumsum([0, *lengths])
    documents = [np.arange(first, last) for first, last in pairwise(edges)]
    return write_token_corpus(folder, documents, vocabulary_size=int(edges[-1]) + 100, **keywords)


def test_documents_by_hand(tmp_path: Path) -> None:
    """Documents of 5, 9, 3 and 1 in rows of 8, at least 2: 8 | 5 + 3; the pieces of 1 are dropped."""
    rows = _open(_count_up(tmp_path, [5, 9, 3, 1], pad=PAD), windows="documents", sequence_length=8, min_length=2)
    found = _read_all(rows)
    assert found.tokens_BS.tolist() == [[0, 1, 2, 3, 4, 14, 15, 16], [5, 6, 7, 8, 9, 10, 11, 12]]
    assert found.segments_BS.tolist() == [[1] * 5 + [2] * 3, [1] * 8]
    assert (rows.num_rows, rows.num_tokens, rows.fill) == (2, 16, 1.0)
    assert found.tokens_BS.dtype == found.segments_BS.dtype == np.int32


def test_pads_have_the_pad_id_and_segment_0(tmp_path: Path) -> None:
    rows = _open(_count_up(tmp_path, [5, 4], pad=PAD), windows="documents", sequence_length=8, min_length=2)
    found = _read_all(rows)
    assert found.tokens_BS.tolist() == [[0, 1, 2, 3, 4, PAD, PAD, PAD], [5, 6, 7, 8, PAD, PAD, PAD, PAD]]
    assert found.segments_BS.tolist() == [[1] * 5 + [0] * 3, [1] * 4 + [0] * 4]
    assert (rows.num_tokens, rows.fill) == (9, 9 / 16)


def test_tokens_that_no_row_has_are_said_with_the_key_that_drops_them(tmp_path: Path) -> None:
    """100 documents of 30 tokens and 100 of 5: 14.3 % are too short. In 4 shards of 875, 3 rows of 256 fit."""
    corpus = Corpus(_count_up(tmp_path, [30, 5] * 100, shards=4))

    def said(**settings: object) -> str | None:
        made = DataSettings(train=str(tmp_path), **{"sequence_length": 256, **settings})
        return tokens_left_out(corpus, open_rows(corpus, made, seed=0), made)

    assert said() == (
        f"3,000 of 3,500 tokens of {tmp_path} are in rows (85.7%): data.min_length=12 drops shorter documents and ends "
        "of documents, 500 tokens. Make it smaller to keep them."
    )
    assert said(windows="random-cut") == (
        f"3,072 of 3,500 tokens of {tmp_path} are in rows (87.8%): data.windows='random-cut' drops what follows the "
        "last whole row of each of the 4 shards, 428 tokens. Use data.windows='documents' or a shorter "
        "data.sequence_length to keep them."
    )
    assert said(min_length=5) is None
    assert said(windows="blocks", sequence_length=175) is None
    assert said(windows="blocks", sequence_length=174) is None  # 4 x 5 of 3,500: 0.6 %


@pytest.mark.parametrize("shards", [1, 4])
def test_every_token_of_every_document_is_in_one_row(tmp_path: Path, shards: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 300)
    rows = _open(_count_up(tmp_path, lengths.tolist(), shards=shards), sequence_length=32, min_length=1)
    found = _read_all(rows)
    assert sorted(found.tokens_BS[found.segments_BS > 0].tolist()) == list(range(lengths.sum()))
    assert rows.num_tokens == lengths.sum()
    document_of_token = np.repeat(np.arange(lengths.size), lengths)
    for tokens_S, segments_S in zip(found.tokens_BS, found.segments_BS, strict=True):
        for segment in range(1, segments_S.max() + 1):
            piece = tokens_S[segments_S == segment]
            assert np.all(np.diff(piece) == 1)
            assert np.unique(document_of_token[piece]).size == 1


def test_short_pieces_are_dropped(tmp_path: Path) -> None:
    rows = _open(_count_up(tmp_path, [11, 12, 75, 76]), sequence_length=64)
    found = _read_all(rows)
    kept = found.tokens_BS[found.segments_BS > 0]
    assert sorted(kept.tolist()) == [*range(11, 23), *range(23, 87), *range(98, 174)]


def test_documents_give_the_same_rows_however_they_are_asked_for(tmp_path: Path) -> None:
    documents = random_documents(500, vocabulary_size=100)
    rows = _open(write_token_corpus(tmp_path, documents, vocabulary_size=100, shards=3), sequence_length=64)
    everything = _read_all(rows)
    numbers = np.random.default_rng(1).permutation(rows.num_rows)[:50]
    some = _read(rows, numbers.tolist(), epoch=7)
    np.testing.assert_array_equal(some.tokens_BS, everything.tokens_BS[numbers])
    np.testing.assert_array_equal(some.segments_BS, everything.segments_BS[numbers])
    assert _read(rows, []).tokens_BS.shape == (0, 64)


def test_blocks_drop_the_tail_of_each_shard(tmp_path: Path) -> None:
    """Shards of 10, 3 and 9 tokens in rows of 4: two rows, none, two rows."""
    rows = _open(_count_up(tmp_path, [10, 3, 9], shards=3), windows="blocks", sequence_length=4)
    found = _read_all(rows)
    assert found.tokens_BS.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [13, 14, 15, 16], [17, 18, 19, 20]]
    assert found.segments_BS.tolist() == [[1] * 4] * 4
    assert (rows.num_rows, rows.num_tokens, rows.fill) == (4, 16, 1.0)


def test_random_cut_has_the_rows_of_blocks_in_two_segments(tmp_path: Path) -> None:
    _count_up(tmp_path, [1000, 1000], shards=2)
    blocks = _open(tmp_path, windows="blocks", sequence_length=32)
    rows = _open(tmp_path, windows="random-cut", sequence_length=32)
    assert rows.num_rows == blocks.num_rows == 62
    assert rows.num_tokens == 62 * 32
    found = _read_all(rows)
    np.testing.assert_array_equal(found.tokens_BS, _read_all(blocks).tokens_BS)
    first_B = (found.segments_BS == 1).sum(axis=1)
    expected_BS = np.where(np.arange(32) < first_B[:, None], 1, 2)
    np.testing.assert_array_equal(found.segments_BS, expected_BS)


def test_cuts_are_uniform_from_12_to_s_minus_12(tmp_path: Path) -> None:
    """20,000 rows of 34: the eleven points 12..22, each about 1,818 times; chi-square with 10 degrees of freedom."""
    _count_up(tmp_path, [34 * 20_000])
    found = _read_all(_open(tmp_path, windows="random-cut", sequence_length=34))
    counts = np.bincount((found.segments_BS == 1).sum(axis=1), minlength=35)
    assert np.flatnonzero(counts).tolist() == list(range(12, 23))
    expected = 20_000 / 11
    assert ((counts[12:23] - expected) ** 2 / expected).sum() < 29.6  # one in a thousand


def test_a_cut_belongs_to_seed_epoch_and_row(tmp_path: Path) -> None:
    _count_up(tmp_path, [128 * 200])
    rows = _open(tmp_path, windows="random-cut", sequence_length=128)
    base = _read_all(rows).segments_BS
    np.testing.assert_array_equal(_read(rows, [150, 3]).segments_BS, base[[150, 3]])
    other_seed = _read_all(_open(tmp_path, seed=1, windows="random-cut", sequence_length=128)).segments_BS
    for other in (_read_all(rows, epoch=1).segments_BS, other_seed):
        same = (other == base).all(axis=1).sum()
        assert same < 12  # about 200 / 105 of 200 rows


def test_the_shortest_rows_are_cut_in_the_middle(tmp_path: Path) -> None:
    found = _read_all(_open(_count_up(tmp_path, [240]), windows="random-cut", sequence_length=24))
    assert (found.segments_BS == 1).sum(axis=1).tolist() == [12] * 10


@pytest.mark.parametrize("windows", ["documents", "random-cut", "blocks"])
def test_a_corpus_without_one_row_is_refused(tmp_path: Path, windows: str) -> None:
    _count_up(tmp_path, [11, 11], shards=2)
    with pytest.raises(CorpusError, match=r"2 documents, 22 tokens, 2 shards"):
        _open(tmp_path, windows=windows, sequence_length=24)


@pytest.mark.parametrize("windows", ["documents", "blocks"])
def test_an_id_outside_the_vocabulary_is_named(tmp_path: Path, windows: str) -> None:
    documents = [np.arange(64) for _ in range(6)]
    documents[4][30] = 70
    write_token_corpus(tmp_path, documents, vocabulary_size=70, shards=2)
    rows = _open(tmp_path, windows=windows, sequence_length=32)
    assert _read(rows, [7]).tokens_BS.max() == 63
    with pytest.raises(CorpusError, match=r"shard-00001\.bin: row 2 of this shard has the token id 70"):
        _read(rows, [7, 8])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 23, "windows": "random-cut"}, "no room for 2 segment"),
        ({"min_length": 0}, "greater than or equal to 1"),
        ({"windows": "document"}, "documents"),
        ({"sequence_lenght": 64}, "Extra inputs"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataSettings(train="x", **settings)


def test_short_rows_are_fine_for_blocks() -> None:
    assert DataSettings(train="x", windows="blocks", sequence_length=8).min_length == 12
