"""Shard writer: encoded spans of a group of sources -> consecutive shards, within the limits; counts every row once.

A shard closes after the document that brings it to its size, or at the end of the group. Two corpora may be written:
the corpus, and its holdout with the held-out documents.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from toolkit.data import ShardEntry, ShardWriter
from toolkit.preprocess.accounts import Account, Counts, Tally
from toolkit.preprocess.encoding import EncodedSpan
from toolkit.preprocess.settings import PreprocessSettings


class ShardSequence:
    """Writes the shards of a corpus and its holdout. Where a shard ends depends only on the documents, not on spans.

    `tally` counts what is written.
    """

    def __init__(
        self, folder: Path, holdout_folder: Path, *, dtype: npt.DTypeLike, settings: PreprocessSettings
    ) -> None:
        self.tally = Tally()
        self.kept = OpenCorpus(folder, dtype, self.tally.kept, settings.shard_tokens)
        self.held_out = OpenCorpus(holdout_folder, dtype, self.tally.held_out, settings.shard_tokens)
        self._settings = settings

    @property
    def is_full(self) -> bool:
        """True if a limit is reached."""
        limits = (self._settings.limit_documents, self._settings.limit_tokens)
        counts = (self.tally.both.documents, self.tally.both.tokens)
        return any(limit is not None and count >= limit for limit, count in zip(limits, counts, strict=True))

    def add(self, encoded: EncodedSpan, source: str) -> None:
        """Add the next span, up to the limits; `source` is the name of its source in corpus.json."""
        account = self.tally.sources.setdefault(source, Account())
        num_taken = self._num_within_limits(encoded.lengths_N)
        lengths, is_held_out = encoded.lengths_N[:num_taken], encoded.is_held_out_N[:num_taken]
        ids = encoded.ids[: int(lengths.sum())]
        for corpus, is_its in ((self.kept, ~is_held_out), (self.held_out, is_held_out)):
            if is_its.any():
                its_ids = ids if is_its.all() else ids[np.repeat(is_its, lengths)]
                corpus.append(its_ids, lengths[is_its], source)
                corpus.counts.text_bytes += int(encoded.text_bytes_N[:num_taken][is_its].sum())
                corpus.counts.special_text_hits += int(encoded.special_hits_N[:num_taken][is_its].sum())
                corpus.counts.unknown_tokens += int(encoded.unknown_N[:num_taken][is_its].sum())
        # Rows after the document that reaches a limit are not counted.
        end = int(encoded.rows_N[num_taken - 1]) if self.is_full else encoded.num_rows
        account.add(num_taken, [(number, row) for number, row in encoded.skipped if number < end])
        account.text_bytes += int(encoded.text_bytes_N[:num_taken].sum())

    def end(self) -> None:
        """Close the open shards."""
        self.kept.close()
        self.held_out.close()

    def abort(self) -> None:
        """Close the files, and remove unfinished shards."""
        self.kept.abort()
        self.held_out.abort()

    def _num_within_limits(self, lengths_N: npt.NDArray[np.int64]) -> int:
        """Number of documents up to the one that reaches a limit, or to the last."""
        num_taken = lengths_N.size
        if self._settings.limit_documents is not None:
            num_taken = min(num_taken, self._settings.limit_documents - self.tally.both.documents)
        if self._settings.limit_tokens is not None:
            missing = self._settings.limit_tokens - self.tally.both.tokens
            num_taken = min(num_taken, int(np.searchsorted(np.cumsum(lengths_N), missing)) + 1)
        return num_taken


class OpenCorpus:
    """A corpus that is being written: its finished shards, and the open one. Adds to `counts`.

    The folder is created with the first shard.
    """

    def __init__(self, folder: Path, dtype: npt.DTypeLike, counts: Counts, shard_tokens: int) -> None:
        self.folder, self.dtype, self.counts, self.shards = folder, np.dtype(dtype), counts, list[ShardEntry]()
        self._shard_tokens, self._tokens_in_shard = shard_tokens, 0
        self._writer: ShardWriter | None = None
        self._sources: list[str] = []

    def append(self, ids: npt.NDArray[np.uint32], lengths_N: npt.NDArray[np.int64], source: str) -> None:
        """Add documents of a source: to the open shard, and to new ones when it reaches its size."""
        ends_N, start, done = np.cumsum(lengths_N), 0, 0
        while start < lengths_N.size:
            # The first document that brings the shard to its size is its last.
            missing = self._shard_tokens - self._tokens_in_shard
            stop = min(lengths_N.size, int(np.searchsorted(ends_N, done + missing)) + 1)
            end = int(ends_N[stop - 1])
            self._append(ids[done:end], lengths_N[start:stop], source)
            if self._tokens_in_shard >= self._shard_tokens:
                self.close()
            start, done = stop, end
        self.counts.documents += lengths_N.size
        self.counts.tokens += ids.size

    def _append(self, ids: npt.NDArray[np.uint32], lengths_N: npt.NDArray[np.int64], source: str) -> None:
        if self._writer is None:
            self.folder.mkdir(exist_ok=True)
            self._writer = ShardWriter(self.folder / f"shard-{len(self.shards):05d}", dtype=self.dtype)
        self._writer.append(ids, lengths_N)
        if self._sources[-1:] != [source]:
            self._sources.append(source)
        self._tokens_in_shard += ids.size

    def close(self) -> None:
        """Finish the open shard, if any."""
        if self._writer is None:
            return
        num_more = len(self._sources) - 1
        source = self._sources[0] + (f" and {num_more:,} more" if num_more else "")
        self.shards.append(self._writer.close(source=source))
        self._writer, self._tokens_in_shard, self._sources = None, 0, []

    def abort(self) -> None:
        """Remove the open shard."""
        if self._writer is not None:
            self._writer.abort()
