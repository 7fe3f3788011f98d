"""Writing of a group of sources: workers read and encode spans ahead, one writer makes the shards in order."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from tokenization import Tokenizer
from toolkit.data import token_dtype
from toolkit.preprocess.accounts import Account
from toolkit.preprocess.encoding import EncodedSpan, SpanEncoder, ahead
from toolkit.preprocess.readers import Span
from toolkit.preprocess.screening.documents import without_dropped
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.source_checks import SourceError, check_sources, errors_explained, spans_of
from toolkit.preprocess.sources import Source
from toolkit.preprocess.text_sample import keep_sample
from toolkit.preprocess.tokenizer_checks import BackendChoice
from toolkit.preprocess.writer.groups import HOLDOUT_FOLDER, SourceGroup, WrittenGroup, new_group, note_written
from toolkit.preprocess.writer.shard_sequence import ShardSequence

OnSpan = Callable[[int, str], None]
"""Called after each span with the bytes of a group's sources read so far, and a note such as the rates."""


def write_group(
    group: SourceGroup,
    folder: Path,
    key: Mapping[str, Any],
    *,
    tokenizer: Tokenizer,
    choice: BackendChoice,
    settings: PreprocessSettings,
    screened: Path | None,
    on_span: OnSpan,
) -> None:
    """Write a group into its folder, which appears atomically; limits in the settings are those left for this group.

    Raises UserError if a source cannot be read, gives no document or loses most of its rows. `key`: see
    `WrittenGroup`. `screened`: folder of what is left out of the group, if anything may be.
    """
    encode = SpanEncoder(tokenizer, choice.backend, settings.holdout, group.num_bytes)
    spans, begun = spans_of(group.files, settings), time.monotonic()
    if screened is not None:
        spans = without_dropped(spans, screened)
    broken: SourceError | None = None

    def encode_span(item: tuple[int, Span]) -> EncodedSpan:
        with errors_explained(group.files[item[0]], settings):
            return encode(item[1])

    with new_group(folder) as unfinished, ExitStack() as stack:
        sequence = ShardSequence(
            unfinished,
            unfinished / HOLDOUT_FOLDER,
            dtype=token_dtype(tokenizer.encoded_vocabulary_size),
            settings=settings,
        )
        stack.callback(sequence.abort)
        results = stack.enter_context(closing(ahead(spans, encode_span, num_workers=settings.workers)))
        try:
            while not sequence.is_full and (result := next(results, None)):
                (number, span), encoded = result
                sequence.add(encoded, group.recorded[number])
                keep_sample(unfinished, encoded.sample)
                on_span(span.end_bytes, sequence.tally.both.rates(time.monotonic() - begun))
        except SourceError as error:
            broken = error
        check_sources(_accounts(group, sequence, broken), settings, broken)
        sequence.end()
        shards, held_out = tuple(sequence.kept.shards), tuple(sequence.held_out.shards)
        written = WrittenGroup(key=dict(key), shards=shards, held_out=held_out, tally=sequence.tally)
        note_written(unfinished, written)


def _accounts(
    group: SourceGroup, sequence: ShardSequence, broken: SourceError | None
) -> Iterator[tuple[Source, Account]]:
    """The sources that were read completely, with their accounts; not the one in which a limit ended the reading."""
    accounts, last = sequence.tally.sources, next(reversed(sequence.tally.sources), "")
    for file, name in zip(group.files, group.recorded, strict=True):
        if name not in accounts and (broken or sequence.is_full):
            continue  # It may not have been reached. In a group that is read completely, it has no span.
        account = accounts.setdefault(name, Account())
        if sequence.is_full and name == last:
            continue  # A limit ended the reading in it.
        account.num_bytes = file.num_bytes
        if broken is None or file != broken.source:
            yield file, account
