"""Encoding of text spans to ids: the work of a thread on one span, and the threads that run ahead of the writer.

Threads are enough: the tokenizer backends, Parquet and decompression all release the GIL, and one process keeps the
vocabulary in memory once. Results come in the order of the spans, so the number of threads affects only the speed.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tokenization import CannotEncode, Tokenizer, TokenizerKind
from tokenization.comparison import hashes_of
from tokenization.losses import characters
from tokenization.reference import Ids, Lengths
from toolkit.core.allocator import available_memory
from toolkit.core.errors import UserError
from toolkit.preprocess.readers import Reason, Row, Span
from toolkit.preprocess.text_sample import SAMPLED_CHARACTERS

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Memory that `tokenizers` needs to encode a text, measured with WordPiece; checked from a gigabyte on.
_BYTES_PER_CHARACTER, _LARGE = 120, 1 << 30
_SHOWN_CHARACTERS = 40
# Characters per batch: a tokenizer's own backend needs up to about 100 bytes of working memory for each, the fast one
# a few.
_OWN_CHARACTERS, _FAST_CHARACTERS = 1 << 19, 8 << 20
# One document is sampled per this many bytes of a group's text, but about this many per group at least, and at most.
_SAMPLED_BYTES, _FEWEST_SAMPLED, _MOST_SAMPLED = 4e6, 32, 1024


class TokenizerBackend(Protocol):
    """Encoder of texts that runs on the calling thread; multiple threads may call it at once."""

    def encode_batch(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Concatenated ids of all texts, and the number of ids per text."""


@dataclass(frozen=True)
class EncodedSpan:
    """Rows of a span: N documents as arrays, and the rows without a document.

    Attributes:
        num_rows: number of rows, with and without a document.
        ids: uint32, the concatenated tokens of all documents.
        lengths_N: tokens of each document, never 0.
        rows_N: each document's row in the span, from 0, ascending.
        text_bytes_N: UTF-8 bytes of each text.
        special_hits_N: occurrences of special-token strings in each text.
        unknown_N: unknown tokens of each document.
        is_held_out_N: whether each document belongs to the holdout corpus.
        skipped: the rows without a document, each with its number in the span, ascending.
        sample: beginnings of a few of the texts, whose ids are checked at the end.
    """

    num_rows: int
    ids: npt.NDArray[np.uint32]
    lengths_N: npt.NDArray[np.int64]
    rows_N: npt.NDArray[np.int64]
    text_bytes_N: npt.NDArray[np.int64]
    special_hits_N: npt.NDArray[np.int64]
    unknown_N: npt.NDArray[np.int64]
    is_held_out_N: npt.NDArray[np.bool_]
    skipped: Sequence[tuple[int, Row]]
    sample: Sequence[str]


@dataclass(frozen=True)
class SpanEncoder:
    """Reads and encodes spans; `tokenizer` counts special text, `backend` makes the ids.

    Attributes:
        holdout: fraction of the documents to hold out.
        num_bytes: size of all sources that the spans come from.
    """

    tokenizer: Tokenizer
    backend: TokenizerBackend
    holdout: float
    num_bytes: int

    def __call__(self, span: Span) -> EncodedSpan:
        """Read a span and encode its texts; raise BackendsDiffer if the fast backend differs from the reference."""
        rows = span.read()
        skipped = [(number, row) for number, row in enumerate(rows) if row.reason is not None]
        numbers = [number for number, row in enumerate(rows) if row.reason is None]
        texts = [rows[number].text for number in numbers]
        ids, lengths, refused = self._encode(texts)
        empty = np.flatnonzero(lengths == 0).tolist()  # no character of these texts gave an id
        if empty:
            skipped += [(numbers[text], refused.get(text) or _without_ids(texts[text])) for text in empty]
            skipped.sort(key=itemgetter(0))
        is_kept = lengths > 0
        text_bytes = np.fromiter(map(_num_bytes, texts), np.int64, len(texts))
        return EncodedSpan(
            num_rows=len(rows),
            ids=ids,
            lengths_N=lengths[is_kept],
            rows_N=np.array(numbers, np.int64)[is_kept],
            text_bytes_N=text_bytes[is_kept],
            special_hits_N=self.tokenizer.special_text_hits(texts, ids, lengths)[is_kept],
            unknown_N=self.tokenizer.unknown_counts(ids, lengths)[is_kept],
            is_held_out_N=np.array([is_held_out(text, self.holdout) for text in texts], bool)[is_kept],
            skipped=skipped,
            sample=[
                texts[number][:SAMPLED_CHARACTERS] for number in self._sampled((ids, lengths), text_bytes * is_kept)
            ],
        )

    def _encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], dict[int, Row]]:
        """Ids of all texts, the number of ids per text, and a bad row for each text that cannot be encoded."""
        encoded, refused = [(np.empty(0, np.uint32), np.empty(0, np.int64))], dict[int, Row]()
        is_own = self.backend is self.tokenizer
        for batch in _batches(texts, _OWN_CHARACTERS if is_own else _FAST_CHARACTERS):
            if is_own and self.tokenizer.kind is TokenizerKind.HUGGINGFACE:
                _check_memory(len(batch[0]))
            try:
                encoded.append(self.backend.encode_batch(batch))
            except CannotEncode:
                first = sum(lengths.size for _, lengths in encoded)
                encoded += [self._encode_one(text, number, refused) for number, text in enumerate(batch, start=first)]
        ids, lengths = (np.concatenate(parts) for parts in zip(*encoded, strict=True))
        return ids, lengths, refused

    def _encode_one(
        self, text: str, number: int, refused: dict[int, Row]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        try:
            return self.tokenizer.encode_batch([text])
        except CannotEncode as error:
            refused[number] = Row("", Reason.CANNOT_ENCODE, str(error.__cause__).partition("\n")[0])
            return np.empty(0, np.uint32), np.zeros(1, np.int64)

    def _sampled(self, encoded: tuple[Ids, Lengths], text_bytes: npt.NDArray[np.int64]) -> list[int]:
        """Numbers of the texts to sample: chosen by hash, about one in `distance` bytes, whatever the span."""
        distance = np.clip(_SAMPLED_BYTES, self.num_bytes / _MOST_SAMPLED, self.num_bytes / _FEWEST_SAMPLED)
        return np.flatnonzero(hashes_of(encoded) * distance < text_bytes * 2.0**32).tolist()


def _without_ids(text: str) -> Row:
    """Row of a text for which the tokenizer gives no ids: only whitespace, say, or characters it has no token for."""
    if characters(text[:SAMPLED_CHARACTERS]):
        return Row("", Reason.CANNOT_ENCODE, f"no token for anything in {text[:_SHOWN_CHARACTERS]!r}")
    return Row("", Reason.EMPTY)


def _check_memory(num_characters: int) -> None:
    """Raise UserError for a document that would exhaust the memory, which would kill the process."""
    needed = num_characters * _BYTES_PER_CHARACTER
    if needed > _LARGE and needed > (available := available_memory()):
        raise UserError(
            f"a document of {num_characters:,} characters takes the tokenizer about {needed / 1e9:.1f} GB of memory; "
            f"{available / 1e9:.1f} GB are available. A .txt file is one document: --txt-documents paragraph or line "
            "divides it. Divide other documents, or use a machine with more memory."
        )


def is_held_out(text: str, fraction: float) -> bool:
    """True if a document goes to the holdout, by the hash of its text, so that equal texts stay together."""
    if not fraction:
        return False
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"holdout").digest()
    return int.from_bytes(digest, "little") < fraction * 2**64


def ahead(
    items: Iterator[_Item], work: Callable[[_Item], _Result], *, num_workers: int | None
) -> Generator[tuple[_Item, _Result]]:
    """Yield items with the results of `work`, in order, while threads work on the next ones.

    At most `num_workers` (by default one per core) + 2 results wait. An error, even one of `items` itself, is raised at
    its place in the order.
    """
    num_workers = num_workers or len(os.sched_getaffinity(0))
    waiting: deque[Future[tuple[_Item, _Result]]] = deque()
    with ExitStack() as stack:
        pool = ThreadPoolExecutor(num_workers, thread_name_prefix="encode")
        stack.callback(pool.shutdown, cancel_futures=True)
        for future in _submit(items, work, pool):
            waiting.append(future)
            if len(waiting) > num_workers + 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _submit(
    items: Iterator[_Item], work: Callable[[_Item], _Result], pool: ThreadPoolExecutor
) -> Iterator[Future[tuple[_Item, _Result]]]:
    """Submit the items one by one; an error of `items` becomes the last result."""

    def call(item: _Item) -> tuple[_Item, _Result]:
        return item, work(item)

    try:
        for item in items:
            yield pool.submit(call, item)
    except Exception as error:  # of any kind: raised again in the consumer, after the items before it
        failed: Future[tuple[_Item, _Result]] = Future()
        failed.set_exception(error)
        yield failed


def _batches(texts: Sequence[str], most_characters: int) -> Iterator[Sequence[str]]:
    """Yield batches of consecutive texts of at most `most_characters` together; a longer text is its own batch."""
    start = characters = 0
    for number, text in enumerate(texts):
        if number > start and characters + len(text) > most_characters:
            yield texts[start:number]
            start, characters = number, 0
        characters += len(text)
    if start < len(texts):
        yield texts[start:]


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
