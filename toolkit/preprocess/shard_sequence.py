"""Encoded blocks become shards, one after the other, under the limits; every row is counted once."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenization import Tokenizer
from toolkit.data.manifest import ShardEntry
from toolkit.data.shards import ShardWriter, token_dtype
from toolkit.preprocess.blocks import Block
from toolkit.preprocess.ledger import Ledger, Step
from toolkit.preprocess.readers import Reason
from toolkit.preprocess.settings import PreprocessSettings

__all__ = ["ShardSequence"]

Lengths = npt.NDArray[np.int64]


class ShardSequence:
    """Writes the shards of a corpus. Where a shard ends depends on the documents alone, not on the blocks.

    Args:
        folder: where the shards go.
        ledger: what is finished already; the sequence goes on behind it.
        tokenizer: decides the type of the tokens; counts special text.
        settings: limits and size of a shard.
        on_shard: called whenever a shard is finished.

    Attributes:
        shards: the finished shards.
        tally: counts so far.
    """

    def __init__(
        self,
        folder: Path,
        ledger: Ledger,
        *,
        tokenizer: Tokenizer,
        settings: PreprocessSettings,
        on_shard: Callable[[Step], None],
    ) -> None:
        self.shards = list(ledger.shards)
        self.tally = ledger.tally
        self._folder, self._on_shard = folder, on_shard
        self._tokenizer, self._settings = tokenizer, settings
        self.dtype = token_dtype(tokenizer.encoded_vocabulary_size)
        self._writer: ShardWriter | None = None
        self._tokens_in_shard = 0
        self._source, self._source_name, self._rows = ledger.source, "", ledger.rows

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached."""
        limits = (self._settings.limit_documents, self._settings.limit_tokens)
        counts = (self.tally.documents, self.tally.tokens)
        return any(limit is not None and count >= limit for limit, count in zip(limits, counts, strict=True))

    def begin_source(self, number: int, name: str) -> None:
        """The blocks that follow are of this source."""
        self._source, self._source_name = number, name

    def add(self, block: Block, ids: npt.NDArray[np.uint32], lengths: Lengths) -> None:
        """Add the rows of a block, up to the limits; `ids` and `lengths` are those of its texts."""
        ends = np.cumsum(lengths)
        num_taken = self._num_within_limits(lengths, ends)
        start = 0
        while start < num_taken:
            first_token = int(ends[start - 1]) if start else 0
            # The first document with which the shard reaches its size is its last.
            missing = self._settings.shard_tokens - self._tokens_in_shard
            stop = min(int(np.searchsorted(ends, first_token + missing)) + 1, num_taken)
            self._append(block, ids[first_token : int(ends[stop - 1])], lengths, start, stop)
            start = stop
            if self._tokens_in_shard >= self._settings.shard_tokens:
                self._close_shard()
        if not self.is_full:
            self._skip(block, start, len(block.texts) + 1)

    def end_source(self) -> None:
        """Close the shard that is open: a shard never holds two sources."""
        self._close_shard()

    def abort(self) -> None:
        """Remove the shard that is open."""
        if self._writer is not None:
            self._writer.abort()

    def _num_within_limits(self, lengths: Lengths, ends: Lengths) -> int:
        """How many texts of a block may be taken: up to the one that reaches a limit."""
        num_texts = lengths.size
        limit_documents, limit_tokens = self._settings.limit_documents, self._settings.limit_tokens
        if limit_documents is not None:
            missing = limit_documents - self.tally.documents
            num_texts = min(num_texts, int(np.searchsorted(np.cumsum(lengths > 0), missing)) + 1)
        if limit_tokens is not None:
            num_texts = min(num_texts, int(np.searchsorted(ends, limit_tokens - self.tally.tokens)) + 1)
        return num_texts

    def _append(self, block: Block, ids: npt.NDArray[np.uint32], lengths: Lengths, start: int, stop: int) -> None:
        """Write the texts start..stop - 1 to the open shard; count their rows and the skipped ones before each."""
        self._skip(block, start, stop)
        for number in (np.flatnonzero(lengths[start:stop] == 0) + start).tolist():  # no character of it gave an id
            self.tally.skip(Reason.EMPTY, source=self._source_name, row=block.row_number(number), found="")
        self._rows = block.row_number(stop - 1)
        kept = [text for text, length in zip(block.texts[start:stop], lengths[start:stop], strict=True) if length]
        if not kept:
            return
        if self._writer is None:
            self._writer = ShardWriter(self._folder / self._next_name(), dtype=self.dtype)
        self._writer.append(ids, lengths[start:stop][lengths[start:stop] > 0])
        self._tokens_in_shard += ids.size
        self.tally.rows += len(kept)
        self.tally.documents += len(kept)
        self.tally.tokens += ids.size
        self.tally.text_bytes += sum(len(text) if text.isascii() else len(text.encode()) for text in kept)
        self.tally.special_text_hits += self._tokenizer.count_special_text(kept)

    def _skip(self, block: Block, start: int, stop: int) -> None:
        """Count the rows without a text that stand before the texts start..stop - 1."""
        for number, row in block.skipped(start, stop):
            assert row.reason is not None
            self.tally.skip(row.reason, source=self._source_name, row=number, found=row.found)
            self._rows = number

    def _next_name(self) -> str:
        return f"shard-{len(self.shards):05d}"

    def _close_shard(self) -> None:
        if self._writer is None:
            return
        files = self._writer.close()
        entry = ShardEntry(
            name=self._next_name(),
            documents=files.documents,
            tokens=files.tokens,
            sha256_bin=files.sha256_bin,
            sha256_idx=files.sha256_idx,
            source=self._source_name,
        )
        self.shards.append(entry)
        self._writer, self._tokens_in_shard = None, 0
        self._on_shard(Step(shard=entry, source=self._source, rows=self._rows, tally=self.tally))
