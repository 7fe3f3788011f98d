"""Three ways to make rows of S tokens with segment ids; only the numbers of rows per shard are kept in memory.

`documents`: pieces of documents packed by best fit, each a segment. `random-cut`: the token stream of a shard in rows
of S, each cut at a uniform random point into two segments. `blocks`: rows of S, one segment. The last two leave out
the tokens after the last full row of a shard. A row never spans two shards.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from toolkit.core.draws import hash_numbers, keyed_uint64
from toolkit.core.errors import CorpusError, NoRowError
from toolkit.core.text import counted, quoted
from toolkit.data.corpus.corpus import Corpus
from toolkit.data.rows.plan_store import PlanStore
from toolkit.data.settings import DataSettings

Numbers = npt.NDArray[np.int64]

_SHARE_NOT_WORTH_SAYING = 0.99


@dataclass(frozen=True)
class TokenRows:
    """Rows as training gets them: token ids and segment ids, both int32 (B, S).

    Segments count 1..k along a row; 0 is padding, whose token is the vocabulary's pad id.
    """

    tokens_BS: npt.NDArray[np.int32]
    segments_BS: npt.NDArray[np.int32]


class Rows(Protocol):
    """The rows of a corpus, numbered from 0; `num_rows` and `num_tokens` (without padding) are per epoch.

    `fill` is the share of an epoch's positions that are not padding.
    """

    num_rows: int
    sequence_length: int
    num_tokens: int
    fill: float

    def read(self, rows_B: Numbers, epochs_B: Numbers) -> TokenRows:
        """The rows with these numbers, as they are in these epochs."""


def open_rows(corpus: Corpus, settings: DataSettings, *, seed: int) -> Rows:
    """Open the rows of a corpus as `settings.windows` says; `documents` builds missing packing plans.

    Plans go below `$XDG_CACHE_HOME` if the corpus cannot be written.

    Args:
        seed: the run's seed; decides where `random-cut` cuts.

    Raises:
        NoRowError: the corpus does not have a single row.
        CorpusError: it is damaged, or a packing plan cannot be written anywhere.
    """
    length = settings.sequence_length
    rows: Rows
    if settings.windows == "documents":
        plans = PlanStore(corpus, sequence_length=length, min_length=settings.min_length)
        rows = DocumentRows(corpus, plans, sequence_length=length)
    elif settings.windows == "random-cut":
        rows = RandomCutRows(corpus, sequence_length=length, min_length=settings.min_length, seed=seed)
    else:
        rows = BlockRows(corpus, sequence_length=length)
    if rows.num_rows == 0:
        what = f"a document of at least data.min_length={settings.min_length} tokens"
        remedy = "a smaller data.min_length"
        if settings.windows != "documents":
            what = (
                f"one full row of data.sequence_length={length} tokens in a shard (data.windows={settings.windows!r})"
            )
            remedy = "a shorter data.sequence_length"
        raise NoRowError(
            f"{corpus.place} does not have {what}: {counted(corpus.num_documents, 'document')}, "
            f"{counted(corpus.num_tokens, 'token')}, {counted(len(corpus.shards), 'shard')}. "
            f"Use a larger corpus, or {remedy}."
        )
    return rows


def tokens_left_out(corpus: Corpus, rows: Rows, settings: DataSettings) -> str | None:
    """Message on how many tokens of a corpus are in no row, and the setting that drops them; None if 1 % or less."""
    kept, total = rows.num_tokens, corpus.num_tokens
    if kept >= _SHARE_NOT_WORTH_SAYING * total:
        return None
    if settings.windows == "documents":
        why = f"data.min_length={settings.min_length} drops shorter documents and ends of documents"
        remedy = "Make it smaller to keep them"
    else:
        of_shards = "the shard" if len(corpus.shards) == 1 else f"each of the {len(corpus.shards):,} shards"
        why = f"data.windows={settings.windows!r} drops what follows the last whole row of {of_shards}"
        remedy = "Use data.windows='documents' or a shorter data.sequence_length to keep them"
    return (
        f"{kept:,} of {total:,} tokens of {corpus.place} are in rows ({kept / total:.1%}): {why}, "
        f"{total - kept:,} tokens. {remedy}."
    )


class BlockRows:
    """Rows of S tokens, each one segment; the same in every epoch."""

    def __init__(self, corpus: Corpus, *, sequence_length: int) -> None:
        self._corpus, self._shards = corpus, corpus.shards
        self._table = _RowTable(corpus.manifest.table.tokens // sequence_length)
        self.num_rows, self.sequence_length = self._table.num_rows, sequence_length
        self.num_tokens = self.num_rows * sequence_length
        self.fill = 1.0

    def read(self, rows_B: Numbers, epochs_B: Numbers) -> TokenRows:
        """The rows with these numbers."""
        length = self.sequence_length
        located = self._table.locate(rows_B)
        tokens_BS = np.empty((rows_B.size, length), np.int32)
        for tokens_S, (shard, row) in zip(tokens_BS, located, strict=True):
            tokens_S[:] = self._shards[shard].tokens[row * length : (row + 1) * length]
        _check_ids(tokens_BS, located, corpus=self._corpus)
        return TokenRows(tokens_BS, np.ones_like(tokens_BS))


class RandomCutRows:
    """Rows of S tokens, each cut once at a point drawn from (seed, epoch, row): two segments."""

    def __init__(self, corpus: Corpus, *, sequence_length: int, min_length: int, seed: int) -> None:
        self._blocks = BlockRows(corpus, sequence_length=sequence_length)
        self.num_rows, self.sequence_length = self._blocks.num_rows, sequence_length
        self.num_tokens, self.fill = self._blocks.num_tokens, self._blocks.fill
        self._min_length = min_length
        self._key = np.uint64(keyed_uint64(seed, "cut"))

    def read(self, rows_B: Numbers, epochs_B: Numbers) -> TokenRows:
        """The rows with these numbers, cut as they are in these epochs."""
        columns_S = np.arange(self.sequence_length)
        segments_BS = np.where(columns_S < self._cuts(rows_B, epochs_B)[:, None], np.int32(1), np.int32(2))
        return TokenRows(self._blocks.read(rows_B, epochs_B).tokens_BS, segments_BS)

    def _cuts(self, rows_B: Numbers, epochs_B: Numbers) -> Numbers:
        """Length of each row's first segment, uniform in min_length .. S - min_length."""
        bits_B = hash_numbers(hash_numbers(self._key, epochs_B), rows_B)
        num_points = np.uint64(self.sequence_length - 2 * self._min_length + 1)
        return self._min_length + (bits_B % num_points).astype(np.int64)


class DocumentRows:
    """Pieces of documents packed into rows as the packing plans say, each a segment; the same in every epoch."""

    def __init__(self, corpus: Corpus, plans: PlanStore, *, sequence_length: int) -> None:
        self._corpus, self._shards, self._plans = corpus, corpus.shards, plans
        self._pads_S = np.full(sequence_length, corpus.vocabulary.pad_id, np.int32)
        self._table = _RowTable(plans.table.num_rows)
        self.num_rows, self.sequence_length = self._table.num_rows, sequence_length
        self.num_tokens = int(plans.table.num_tokens.sum())
        self.fill = self.num_tokens / max(1, self.num_rows * sequence_length)

    def read(self, rows_B: Numbers, epochs_B: Numbers) -> TokenRows:
        """The rows with these numbers."""
        # Python touches each piece once, as a slice; two array calls over the whole batch copy the data.
        parts, lengths, segments = [], [], []
        located = self._table.locate(rows_B)
        for shard, row in located:
            plan, tokens = self._plans.plan(shard), self._shards[shard].tokens
            first, last = plan.row_starts[row : row + 2].tolist()
            starts, row_lengths = plan.firsts[first:last].tolist(), plan.lengths[first:last].tolist()
            parts += [tokens[start : start + length] for start, length in zip(starts, row_lengths, strict=True)]
            num_pads = self.sequence_length - sum(row_lengths)
            parts.append(self._pads_S[:num_pads])
            lengths += [*row_lengths, num_pads]
            segments += [*range(1, last - first + 1), 0]
        tokens_BS = np.empty((rows_B.size, self.sequence_length), np.int32)
        if parts:
            np.concatenate(parts, out=tokens_BS.reshape(-1))
        _check_ids(tokens_BS, located, corpus=self._corpus)
        segments_BS = np.repeat(np.array(segments, np.int32), lengths).reshape(tokens_BS.shape)
        return TokenRows(tokens_BS, segments_BS)


def _check_ids(tokens_BS: npt.NDArray[np.int32], located: list[tuple[int, int]], *, corpus: Corpus) -> None:
    """Raise `CorpusError` for out-of-vocabulary ids: they would crash deep inside a model. Costs < 1 % of reading."""
    size = corpus.vocabulary.size
    ids_BS = tokens_BS.view(np.uint32)  # negative ids become large ones
    if ids_BS.size == 0 or ids_BS.max() < size:
        return
    row, column = np.argwhere(ids_BS >= size)[0].tolist()
    shard, row_in_shard = located[row]
    raise CorpusError(
        f"{corpus.place}/{corpus.manifest.table.names[shard]}.bin: row {row_in_shard} of this shard has the token id "
        f"{tokens_BS[row, column]}, outside the vocabulary of {size:,} ids. The tokens are damaged, or were made with "
        f"another tokenizer. `toolkit verify {quoted(corpus.path)}` tells which; copy the corpus again, or rebuild it."
    )


class _RowTable:
    def __init__(self, rows_per_shard: Numbers) -> None:
        self._ends: Numbers = np.cumsum(rows_per_shard)
        self._starts = self._ends - rows_per_shard
        self.num_rows = int(self._ends[-1]) if self._ends.size else 0

    def locate(self, rows_B: Numbers) -> list[tuple[int, int]]:
        """(Index of the shard, row in that shard) for each row."""
        assert rows_B.size == 0 or 0 <= rows_B.min() <= rows_B.max() < self.num_rows, "no such row"
        shards_B = np.searchsorted(self._ends, rows_B, side="right")
        return list(zip(shards_B.tolist(), (rows_B - self._starts[shards_B]).tolist(), strict=True))
