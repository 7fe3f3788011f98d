"""Cutting documents into pieces, and packing pieces into rows."""

from itertools import pairwise

import numpy as np
import pytest

from toolkit.data.rows import packing
from toolkit.data.rows.packing import PackedRows, Pieces, count_pieces, iterate_pieces, pack


def _pieces(lengths: list[int], sequence_length: int, min_length: int, block: int = 1000) -> list[tuple[int, int]]:
    blocks = iterate_pieces(np.array(lengths), sequence_length=sequence_length, min_length=min_length, block=block)
    return [pair for some in blocks for pair in zip(some.firsts.tolist(), some.lengths.tolist(), strict=True)]


def _pack(lengths: list[int], sequence_length: int) -> PackedRows:
    array = np.array(lengths, np.int64)
    return pack(Pieces(np.cumsum(array) - array, array), sequence_length=sequence_length)


def _rows(packed: PackedRows) -> list[list[int]]:
    edges = packed.row_starts.tolist()
    return [packed.lengths[first:last].tolist() for first, last in pairwise(edges)]


def _plain_best_fit(lengths: np.ndarray, sequence_length: int) -> list[int]:
    """Space left in the rows of best-fit decreasing, one piece at a time; ascending."""
    spaces: list[int] = []
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [(space, number) for number, space in enumerate(spaces) if space >= length]
        if fitting:
            spaces[min(fitting)[1]] -= length
        else:
            spaces.append(sequence_length - length)
    return sorted(spaces)


def test_pieces_by_hand() -> None:
    """S=10, at least 3: 25 -> 10 + 10 + 5; 12 -> 10 (2 dropped); 2 -> nothing; 0 -> nothing; 10 -> 10; 3 -> 3."""
    expected = [(0, 10), (10, 10), (20, 5), (25, 10), (39, 10), (49, 3)]
    lengths = [25, 12, 2, 0, 10, 3]
    assert _pieces(lengths, 10, 3) == expected
    assert count_pieces(np.array(lengths), sequence_length=10, min_length=3) == 6
    for block in (1, 2, 4, 5):
        assert _pieces(lengths, 10, 3, block) == expected


def test_any_number_of_documents_at_once_gives_the_same_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(0, 40, 50)
    expected, pieces = _pieces(lengths.tolist(), 10, 3), np.cumsum(lengths)
    assert expected[-1][0] >= pieces[-2]
    for number in (1, 2, 7, 50):
        monkeypatch.setattr(packing, "_DOCUMENTS_AT_ONCE", number)
        assert _pieces(lengths.tolist(), 10, 3, block=16) == expected
        assert count_pieces(lengths, sequence_length=10, min_length=3) == len(expected)


def test_one_long_document_comes_in_blocks() -> None:
    blocks = list(iterate_pieces(np.array([10**7]), sequence_length=100, min_length=1, block=4096))
    assert [some.firsts.size for some in blocks] == [4096] * 24 + [100_000 - 24 * 4096]
    assert blocks[24].firsts[0] == 24 * 4096 * 100


def test_packing_by_hand() -> None:
    """Best fit, longest first: 8+2, 7+3, 6+4 fill three rows of 10; 5 stays alone. Pieces keep their order."""
    packed = _pack([4, 8, 3, 5, 7, 2, 6], 10)
    assert _rows(packed) == [[8, 2], [5], [3, 7], [4, 6]]
    assert packed.firsts.tolist() == [4, 27, 15, 12, 20, 0, 29]


def test_several_short_pieces_fill_one_row_before_the_next() -> None:
    """Rows with 5 and 4 left and five pieces of 2: two fit in the 4, two in the 5, one opens a row."""
    assert _rows(_pack([5, 6, 2, 2, 2, 2, 2], 10)) == [[5, 2, 2], [6, 2, 2], [2]]


def test_an_empty_shard_has_no_rows() -> None:
    assert _rows(_pack([], 10)) == []


@pytest.mark.parametrize("sequence_length", [16, 64, 512])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_fills_like_best_fit_one_piece_at_a_time(sequence_length: int, seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, sequence_length + 1, 400)
    rows = _rows(_pack(lengths.tolist(), sequence_length))
    assert sorted(sequence_length - sum(row) for row in rows) == _plain_best_fit(lengths, sequence_length)


def test_every_piece_is_in_one_row() -> None:
    lengths = np.random.default_rng(3).geometric(0.01, 5000).clip(max=256)
    packed = _pack(lengths.tolist(), 256)
    order = np.argsort(packed.firsts)
    np.testing.assert_array_equal(packed.lengths[order], lengths)
    np.testing.assert_array_equal(packed.firsts[order], np.cumsum(lengths) - lengths)
    sums = np.add.reduceat(packed.lengths, packed.row_starts[:-1])
    assert sums.max() <= 256


def test_the_first_rows_are_like_the_rest() -> None:
    """Rows come in text order, not longest pieces first: an evaluation of the first rows is a fair one."""
    lengths = np.random.default_rng(4).integers(1, 257, 20_000)
    packed = _pack(lengths.tolist(), 256)
    pieces_per_row = np.diff(packed.row_starts)
    assert pieces_per_row[:2000].mean() == pytest.approx(pieces_per_row.mean(), rel=0.05)


def test_fill_of_a_real_size_shard() -> None:
    """22,000 documents, lengths log-normal as on the web (median 540 tokens): at most 1 position in 1,000 is empty."""
    lengths = np.exp(np.random.default_rng(5).normal(6.3, 1.1, 22_000)).astype(np.int64) + 1
    (pieces,) = iterate_pieces(lengths, sequence_length=2048, min_length=12, block=1 << 18)
    packed = pack(pieces, sequence_length=2048)
    num_rows = packed.row_starts.size - 1
    assert pieces.lengths.sum() / (num_rows * 2048) >= 0.999
    assert pieces.lengths.sum() >= 0.999 * lengths.sum()


def _fewest_rows(lengths: np.ndarray, sequence_length: int) -> int:
    """A number of rows that no packing can beat (Martello and Toth 1990, "Knapsack Problems", section 8.3: L2)."""
    half, best = sequence_length // 2, 0
    for least in range(half + 1):
        alone = lengths > sequence_length - least
        large = (lengths > half) & ~alone
        small = lengths[(lengths >= least) & (lengths <= half)].sum()
        left = large.sum() * sequence_length - lengths[large].sum()
        best = max(best, int(alone.sum() + large.sum() + max(0, -(-(small - left) // sequence_length))))
    return best


@pytest.mark.parametrize("sequence_length", [64, 128, 512, 2048])
def test_hardly_more_rows_than_any_packing_needs(sequence_length: int) -> None:
    """Where short rows stay less than 99.9 % full, the documents are to blame: no packing fits them better."""
    lengths = np.exp(np.random.default_rng(6).normal(4.8, 1.4, 20_000)).astype(np.int64) + 12
    (pieces,) = iterate_pieces(lengths, sequence_length=sequence_length, min_length=12, block=1 << 22)
    num_rows = pack(pieces, sequence_length=sequence_length).row_starts.size - 1
    assert num_rows <= 1.0005 * _fewest_rows(pieces.lengths, sequence_length) + 1
