"""Frames of documents tokenized elsewhere: the ids around each document, counted."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenization import Frame, Tokenizer
from toolkit.data import Shard

_DOCUMENTS_AT_ONCE = 1 << 18
_MOST_IDS = 4

_Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FrameIds:
    """Ids that may come before documents (`front`) and after them (`back`).

    `last` are for a document that ends with none of `back`: only its final id counts, since texts may have others.
    """

    front: tuple[int, ...]
    back: tuple[int, ...]
    last: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "FrameIds":
        """Ids that a tokenizer itself puts there, and those that its files name as a beginning or an end.

        Any other special token may end documents too, as their author decided: one, or more if the files name no end.
        """
        own, roles = tokenizer.own_frame, tokenizer.role_ids
        ends = [tokenizer.eod_id, *(roles.get(role) for role in ("eos", "sep"))]
        special = set(tokenizer.all_special_ids) - {tokenizer.mask.id, roles.get("unk")}
        if tokenizer.eod_id is None:
            ends += special
        beginnings = (roles.get(role) for role in ("bos", "cls"))
        back = {*own.back, *(token_id for token_id in ends if token_id is not None)}
        return cls(
            front=tuple(sorted({*own.front, *(token_id for token_id in beginnings if token_id is not None)})),
            back=tuple(sorted(back)),
            last=tuple(sorted(special - back)),
        )


class FrameCounter:
    """Counts the frames of a shard's nonempty documents as the file is read."""

    def __init__(self, shard: Shard, ids: FrameIds) -> None:
        self._tokens, self._ids, self._blocks = shard.tokens, ids, _document_spans(shard)
        self._starts = self._ends = np.empty(0, np.int64)
        self.frames = Counter[Frame]()

    def read_to(self, position: int) -> None:
        """Count the documents that end at or before token `position` and have not been counted yet."""
        while True:
            count = int(np.searchsorted(self._ends, position, side="right"))
            self._count(self._starts[:count], self._ends[:count])
            self._starts, self._ends = self._starts[count:], self._ends[count:]
            if self._ends.size or (block := next(self._blocks, None)) is None:
                return
            self._starts, self._ends = block

    def _count(self, starts: _Int64s, ends: _Int64s) -> None:
        if not ends.size:
            return
        front = self._leading(self._ids.front, starts, ends, step=1)
        after_front = starts + np.count_nonzero(front, axis=0)
        back = self._leading(self._ids.back, ends - 1, after_front - 1, step=-1)
        is_other = (back[0] == 0) & (ends > after_front)
        last = self._ranks(self._ids.last, ends - 1, is_other)
        back[0][last > 0] = last[last > 0] + len(self._ids.back)
        of_rank = self._ids.back + self._ids.last
        found, counts = np.unique(np.concatenate([front, back]), axis=1, return_counts=True)
        for ranks, count in zip(found.T.tolist(), counts.tolist(), strict=True):
            ahead, after = ranks[:_MOST_IDS], ranks[_MOST_IDS:]
            self.frames[
                Frame(
                    tuple(self._ids.front[rank - 1] for rank in ahead if rank),
                    tuple(of_rank[rank - 1] for rank in reversed(after) if rank),
                )
            ] += count

    def _leading(self, ids: tuple[int, ...], first: _Int64s, stop: _Int64s, *, step: int) -> _Int64s:
        """(4, N) ranks in `ids`, from 1, of the tokens from `first` on, up to the first one not in `ids`."""
        ranks = np.zeros((_MOST_IDS, first.size), np.int64)
        is_open = np.ones(first.size, dtype=bool)
        for number in range(_MOST_IDS):
            place = first + number * step
            is_open &= (stop - place) * step > 0
            ranks[number] = self._ranks(ids, place, is_open)
            is_open &= ranks[number] > 0
        return ranks

    def _ranks(self, ids: tuple[int, ...], place: _Int64s, is_open: npt.NDArray[np.bool_]) -> _Int64s:
        """Rank of each token in `ids` (ascending), from 1; 0 if it is not in them, or not open."""
        if not ids:
            return np.zeros(place.size, np.int64)
        tokens = self._tokens[np.where(is_open, place, 0)]
        ranks = np.minimum(np.searchsorted(ids, tokens), len(ids) - 1)
        return np.where(is_open & (np.array(ids)[ranks] == tokens), ranks + 1, 0)


def _document_spans(shard: Shard) -> Iterator[tuple[_Int64s, _Int64s]]:
    """Starts and ends of nonempty documents, in tokens, block by block."""
    end = 0
    for first in range(0, shard.num_documents, _DOCUMENTS_AT_ONCE):
        lengths = shard.lengths[first : first + _DOCUMENTS_AT_ONCE].astype(np.int64)
        ends = end + np.cumsum(lengths)
        end = int(ends[-1])
        yield (ends - lengths)[lengths > 0], ends[lengths > 0]
