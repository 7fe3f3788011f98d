"""Pieces of documents, and best-fit packing of pieces into rows.

Packing is best-fit decreasing: the longest piece first, each into the row with the least space that still fits it
(Ding et al. 2024, "Fewer Truncations Improve Language Modeling", section 3). Rows are kept in buckets by remaining
space, and all pieces of one length are assigned to all rows of one bucket in a single array operation, as in histogram
packing (Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination", section 3.2). The cost therefore
grows with the number of distinct lengths, not with the number of pieces.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toolkit.data.corpus.shard_index import Lengths

_DOCUMENTS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Pieces:
    """Spans of tokens of one shard: position of the first token and number of tokens, (P,) each."""

    firsts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


@dataclass(frozen=True)
class PackedRows:
    """`Pieces` in rows: row r has those from row_starts[r] to row_starts[r + 1] - 1, in the order of the text."""

    firsts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.integer]
    row_starts: npt.NDArray[np.int64]


def count_pieces(lengths: Lengths, *, sequence_length: int, min_length: int) -> int:
    """Number of pieces that documents of these lengths are cut into."""
    total = 0
    for start in range(0, lengths.size, _DOCUMENTS_AT_ONCE):
        some = lengths[start : start + _DOCUMENTS_AT_ONCE]
        total += int(_pieces_per_document(some, sequence_length, min_length).sum())
    return total


def iterate_pieces(lengths: Lengths, *, sequence_length: int, min_length: int, block: int) -> Iterator[Pieces]:
    """Cut consecutive documents into pieces, `block` at a time (fewer in the last block).

    A document gives pieces of `sequence_length` and a remainder, which is dropped if shorter than `min_length`.
    Needs memory for `block` pieces and a fixed number of documents, whatever their sizes.
    """
    waiting: list[Pieces] = []
    num_waiting = offset = 0
    for start in range(0, lengths.size, _DOCUMENTS_AT_ONCE):
        some = lengths[start : start + _DOCUMENTS_AT_ONCE].astype(np.int64)
        ends = np.cumsum(some)
        piece_ends = np.cumsum(_pieces_per_document(some, sequence_length, min_length))
        num_pieces, first = int(piece_ends[-1]), 0
        while first < num_pieces:
            last = min(num_pieces, first + block - num_waiting)
            numbers = np.arange(first, last)
            documents = np.searchsorted(piece_ends, numbers, side="right")
            piece_starts = np.concatenate(([0], piece_ends[:-1]))
            within = (numbers - piece_starts[documents]) * sequence_length
            firsts = offset + (ends - some)[documents] + within
            waiting.append(Pieces(firsts, np.minimum(some[documents] - within, sequence_length)))
            num_waiting += last - first
            first = last
            if num_waiting == block:
                yield _joined(waiting)
                waiting, num_waiting = [], 0
        offset += int(ends[-1])
    if num_waiting:
        yield _joined(waiting)


def pack(pieces: Pieces, *, sequence_length: int) -> PackedRows:
    """Pack pieces into rows of `sequence_length` by best fit. Deterministic; no piece is lost or split.

    Rows are in the order in which their longest pieces occur in the text, so the first rows are like the rest.
    """
    rows, openers = _best_fit(pieces.lengths, sequence_length)
    rank = np.empty_like(openers)
    rank[np.argsort(openers)] = np.arange(openers.size)
    rows = rank[rows]
    order = np.argsort(rows, kind="stable")
    row_starts = np.zeros(openers.size + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=openers.size), out=row_starts[1:])
    return PackedRows(pieces.firsts[order], pieces.lengths[order], row_starts)


def _pieces_per_document(
    lengths: npt.NDArray[np.integer], sequence_length: int, min_length: int
) -> npt.NDArray[np.int64]:
    whole, rest = np.divmod(lengths.astype(np.int64), sequence_length)
    return whole + (rest >= min_length)


def _joined(waiting: list[Pieces]) -> Pieces:
    return Pieces(
        np.concatenate([pieces.firsts for pieces in waiting]),
        np.concatenate([pieces.lengths for pieces in waiting]),
    )


def _best_fit(
    lengths: npt.NDArray[np.int64], sequence_length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The row of each piece, and the piece that opened each row."""
    descending = np.argsort(-lengths, kind="stable")
    counts = np.bincount(lengths, minlength=sequence_length + 1)
    dealt = np.empty(lengths.size, np.int64)  # row of each piece, longest piece first
    openers: list[npt.NDArray[np.int64]] = []
    space = _Buckets(sequence_length)
    num_rows = done = 0
    for length in range(sequence_length, 0, -1):
        stop = done + int(counts[length])
        while done < stop:
            left = space.least_at_least(length)
            if left is None:
                left, fits = sequence_length, sequence_length // length
                num_new = -(-(stop - done) // fits)
                rows = np.arange(num_rows, num_rows + num_new)
                num_rows += num_new
                openers.append(descending[done:stop:fits])
            else:
                rows = space.take(left)
            done += _deal(dealt[done:stop], rows, space, left=left, length=length)
    rows = np.empty_like(dealt)
    rows[descending] = dealt
    return rows, np.concatenate([np.empty(0, np.int64), *openers])


class _Buckets:
    """Rows by remaining space."""

    def __init__(self, sequence_length: int) -> None:
        self._rows: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(sequence_length + 1)]
        self._occupied = bytearray(sequence_length + 1)  # searched by one call in C

    def least_at_least(self, length: int) -> int | None:
        """The smallest remaining space that fits a piece of `length`."""
        left = self._occupied.find(1, length)
        return None if left < 0 else left

    def take(self, left: int) -> npt.NDArray[np.int64]:
        rows = self._rows[left].pop()
        self._occupied[left] = bool(self._rows[left])
        return rows

    def put(self, left: int, rows: npt.NDArray[np.int64]) -> None:
        if left and rows.size:
            self._rows[left].append(rows)
            self._occupied[left] = 1


def _deal(dealt: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], space: _Buckets, *, left: int, length: int) -> int:
    """Fill `rows`, which have space `left` each, with pieces of `length`; return the number of pieces placed.

    Best fit fills one row before it moves to the next: a row that just took a piece has the least space of all.
    """
    fits = left // length
    num_full = min(rows.size, dealt.size // fits)
    placed = num_full * fits
    dealt[:placed] = np.repeat(rows[:num_full], fits)
    space.put(left - fits * length, rows[:num_full])
    if num_full == rows.size:
        return placed
    num_last = dealt.size - placed  # too few to fill one more row
    dealt[placed:] = rows[num_full]
    space.put(left - num_last * length, rows[num_full : num_full + 1])
    space.put(left, rows[num_full + 1 :])
    return dealt.size
