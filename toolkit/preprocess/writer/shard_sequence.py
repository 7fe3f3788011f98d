"""Encoded spans of a group of sources become shards, one after the other, under the limits; every row is counted once.

A shard closes after the document with which it reaches its size, or at the end of the group. Two corpora may be
written: the corpus, and its holdout with the documents that are held out. A shard of the holdout also closes together
with one of the corpus, so that one place in the sources says where to resume for both.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from toolkit.data import ShardEntry, ShardWriter
from toolkit.preprocess.encoding import EncodedSpan
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.writer.ledger import Account, Counts, Ledger, Place, Step


class ShardSequence:
    """Writes the shards of a corpus and its holdout. Where one ends depends on the documents alone, not on the spans.

    It continues after what the ledger says is finished, and calls `on_step` whenever a shard is.
    """

    def __init__(
        self,
        folder: Path,
        holdout_folder: Path,
        ledger: Ledger,
        *,
        dtype: npt.DTypeLike,
        settings: PreprocessSettings,
        on_step: Callable[[Step], None],
    ) -> None:
        self.tally = ledger.tally
        self.kept = OpenCorpus(folder, dtype, self.tally.kept, ledger.shards)
        self.held_out = OpenCorpus(holdout_folder, dtype, self.tally.held_out, ledger.held_out)
        self._settings, self._on_step = settings, on_step
        self._place, self._source, self._account = ledger.place, "", Account()
        self._next_span_rows = 0
        self._held_out_since: list[ShardEntry] = []

    @property
    def is_full(self) -> bool:
        """True once a limit is reached."""
        limits = (self._settings.limit_documents, self._settings.limit_tokens)
        counts = (self.tally.both.documents, self.tally.both.tokens)
        return any(limit is not None and count >= limit for limit, count in zip(limits, counts, strict=True))

    def begin_source(self, number: int, name: str) -> None:
        """The spans that follow are of this source, named as in corpus.json; nothing new while it is the same."""
        if name == self._source:
            return
        self._source, self._account = name, self.tally.sources.setdefault(name, Account())
        if number != self._place.source:
            self._place = Place(source=number)
            self._next_span_rows = 0
        else:  # the first source of a resumed run
            self._next_span_rows = self._place.rows_before_span

    def add(self, encoded: EncodedSpan) -> None:
        """Add the next span of the source, up to the limits, without the rows that are done."""
        first_row = self._next_span_rows
        self._next_span_rows += encoded.num_rows
        self._move(span_start=encoded.start, rows_before_span=first_row)
        ends_N = np.cumsum(encoded.lengths_N)
        kept_ends_N = np.cumsum(np.where(encoded.is_held_out_N, 0, encoded.lengths_N))
        held_ends_N = ends_N - kept_ends_N
        start = int(np.searchsorted(encoded.rows_N, self._place.rows - first_row))
        num_taken = self._num_within_limits(ends_N, start)
        while start < num_taken:
            stop = num_taken
            for corpus, its_ends_N in ((self.kept, kept_ends_N), (self.held_out, held_ends_N)):
                done = int(its_ends_N[start - 1]) if start else 0
                # The first document with which the shard reaches its size is its last.
                missing = self._settings.shard_tokens - corpus.tokens_in_shard
                stop = min(stop, int(np.searchsorted(its_ends_N, done + missing)) + 1)
            self._skip_until(encoded, first_row, int(encoded.rows_N[stop - 1]))
            self._take(encoded, start, stop)
            self._move(rows=first_row + int(encoded.rows_N[stop - 1]) + 1)
            start = stop
            if self.kept.tokens_in_shard >= self._settings.shard_tokens:
                self._close_shards(is_last=False)
            elif self.held_out.tokens_in_shard >= self._settings.shard_tokens:
                self._close_held_out()
        if not self.is_full:
            self._skip_until(encoded, first_row, encoded.num_rows)
            self._move(rows=max(self._place.rows, self._next_span_rows))

    def end_group(self) -> None:
        """Close the shards that are open, and note that nothing is left to do."""
        self._close_shards(is_last=True)

    def close(self) -> None:
        """Remove the shards that are open."""
        self.kept.abort()
        self.held_out.abort()

    def _num_within_limits(self, ends_N: npt.NDArray[np.int64], start: int) -> int:
        """Number of documents up to the one that reaches a limit, or to the last."""
        num_taken = ends_N.size
        limit_documents, limit_tokens = self._settings.limit_documents, self._settings.limit_tokens
        if limit_documents is not None:
            num_taken = min(num_taken, start + limit_documents - self.tally.both.documents)
        if limit_tokens is not None:
            done = int(ends_N[start - 1]) if start else 0
            num_taken = min(num_taken, int(np.searchsorted(ends_N, done + limit_tokens - self.tally.both.tokens)) + 1)
        return num_taken

    def _take(self, encoded: EncodedSpan, start: int, stop: int) -> None:
        first, last = (int(encoded.lengths_N[:number].sum()) for number in (start, stop))
        ids, lengths, is_held_out = (
            encoded.ids[first:last],
            encoded.lengths_N[start:stop],
            encoded.is_held_out_N[start:stop],
        )
        for corpus, is_its in ((self.kept, ~is_held_out), (self.held_out, is_held_out)):
            if is_its.all():
                its_ids = ids
            elif is_its.any():
                its_ids = ids[np.repeat(is_its, lengths)]
            else:
                continue
            corpus.append(its_ids, lengths[is_its], self._source)
            corpus.counts.text_bytes += int(encoded.text_bytes_N[start:stop][is_its].sum())
            corpus.counts.special_text_hits += int(encoded.special_hits_N[start:stop][is_its].sum())
            corpus.counts.unknown_tokens += int(encoded.unknown_N[start:stop][is_its].sum())
        self._account.documents += stop - start
        self._account.text_bytes += int(encoded.text_bytes_N[start:stop].sum())

    def _skip_until(self, encoded: EncodedSpan, first_row: int, end: int) -> None:
        """Count the rows without a document before row `end` of the span that are not done."""
        for number, row in encoded.skipped:
            if self._place.rows <= first_row + number < first_row + end:
                self._account.skip(row, first_row + number + 1)

    def _move(self, **changes: int) -> None:
        self._place = self._place.model_copy(update=changes)

    def _close_held_out(self) -> None:
        entry = self.held_out.close()
        if entry is not None:
            self._held_out_since.append(entry)

    def _close_shards(self, *, is_last: bool) -> None:
        self._close_held_out()
        shard = self.kept.close()
        step = Step(
            shards=() if shard is None else (shard,),
            held_out=tuple(self._held_out_since),
            place=self._place,
            tally=self.tally,
            is_last=is_last,
        )
        self._on_step(step)
        self._held_out_since.clear()


class OpenCorpus:
    """A corpus that is being written: its finished shards, and the open one. `counts` are counted on.

    The folder is made when the first shard is begun.
    """

    def __init__(self, folder: Path, dtype: npt.DTypeLike, counts: Counts, shards: tuple[ShardEntry, ...]) -> None:
        self.folder, self.dtype, self.counts, self.shards = folder, np.dtype(dtype), counts, list(shards)
        self.tokens_in_shard = 0
        self._writer: ShardWriter | None = None
        self._sources: list[str] = []

    def append(self, ids: npt.NDArray[np.uint32], lengths_N: npt.NDArray[np.int64], source: str) -> None:
        """Add documents of a source to the open shard."""
        if self._writer is None:
            self.folder.mkdir(exist_ok=True)
            self._writer = ShardWriter(self.folder / self._next_name(), dtype=self.dtype)
        self._writer.append(ids, lengths_N)
        if self._sources[-1:] != [source]:
            self._sources.append(source)
        self.tokens_in_shard += ids.size
        self.counts.documents += lengths_N.size
        self.counts.tokens += ids.size

    def close(self) -> ShardEntry | None:
        """Finish the open shard, if there is one."""
        if self._writer is None:
            return None
        files, num_more = self._writer.close(), len(self._sources) - 1
        source = self._sources[0] + (f" and {num_more:,} more" if num_more else "")
        entry = ShardEntry(name=self._next_name(), source=source, **dataclasses.asdict(files))
        self.shards.append(entry)
        self._writer, self.tokens_in_shard, self._sources = None, 0, []
        return entry

    def abort(self) -> None:
        """Remove the open shard."""
        if self._writer is not None:
            self._writer.abort()

    def _next_name(self) -> str:
        return f"shard-{len(self.shards):05d}"
