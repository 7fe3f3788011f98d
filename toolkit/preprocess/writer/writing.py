"""Read, encode and write a group of sources: workers encode spans ahead, one writer makes the shards in order."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

from tokenization import Tokenizer
from toolkit.data import token_dtype
from toolkit.preprocess.encoding import EncodedSpan, SpanEncoder, ahead
from toolkit.preprocess.judging import SourceError, check_sources, errors_explained
from toolkit.preprocess.readers import Span, iterate_spans
from toolkit.preprocess.screening.documents import without_dropped
from toolkit.preprocess.settings import PreprocessSettings, ReadingSettings
from toolkit.preprocess.sources import Source
from toolkit.preprocess.text_losses import keep_sample
from toolkit.preprocess.tokenizer_checks import BackendChoice
from toolkit.preprocess.writer.groups import HOLDOUT_FOLDER, SourceGroup
from toolkit.preprocess.writer.ledger import Account, Ledger, Place, record_step
from toolkit.preprocess.writer.shard_sequence import ShardSequence

OnSpan = Callable[[int, str], None]
"""Hears, after each span, how many bytes of a group's sources were read since the writing began, and at which rates."""
_BEGINNING = Place()


def write_group(
    group: SourceGroup,
    folder: Path,
    ledger: Ledger,
    *,
    tokenizer: Tokenizer,
    choice: BackendChoice,
    settings: PreprocessSettings,
    screened: Path | None,
    on_span: OnSpan,
) -> None:
    """Write what is missing of a group into its folder; the limits of the settings are what is left of them for it.

    UserError where a source cannot be read, gives no document or loses most of its rows; what is finished stays.
    `screened` has what is left out of it, if anything is.
    """
    encode = SpanEncoder(tokenizer, choice.backend, settings.holdout, group.num_bytes)
    sequence = ShardSequence(
        folder,
        folder / HOLDOUT_FOLDER,
        ledger,
        dtype=token_dtype(tokenizer.encoded_vocabulary_size),
        settings=settings,
        on_step=partial(record_step, folder),
    )
    place, before, begun = ledger.place, sequence.tally.both, time.monotonic()
    num_workers = settings.workers or len(os.sched_getaffinity(0))
    ends = list(accumulate((file.num_bytes for file in group.files[place.source :]), initial=0))
    spans = spans_of(group.files, settings, place)
    if screened is not None:
        spans = without_dropped(spans, screened)
    broken: SourceError | None = None

    def encode_span(item: tuple[int, Span]) -> EncodedSpan:
        with errors_explained(group.files[item[0]], settings):
            return encode(item[1])

    with closing(sequence), closing(ahead(spans, encode_span, num_workers=num_workers)) as results:
        try:
            while not sequence.is_full and (result := next(results, None)):
                (number, _), encoded = result
                sequence.begin_source(number, group.recorded[number])
                keep_sample(folder, encoded.sample)
                sequence.add(encoded)
                rates = sequence.tally.both.minus(before).rates(time.monotonic() - begun)
                on_span(ends[number - place.source] + encoded.end_bytes, rates)
        except SourceError as error:
            broken = error
        check_sources(_accounts(group, sequence, broken), settings, broken)
        sequence.end_group()


def _accounts(
    group: SourceGroup, sequence: ShardSequence, broken: SourceError | None
) -> Iterator[tuple[Source, Account]]:
    """The sources that were read whole, or up to a limit, with their accounts."""
    accounts, last = sequence.tally.sources, next(reversed(sequence.tally.sources), "")
    for file, name in zip(group.files, group.recorded, strict=True):
        if name not in accounts and (broken or sequence.is_full):
            continue  # It may not have been reached. In a group that is read whole, it has no span.
        account = accounts.setdefault(name, Account())
        if sequence.is_full and name == last:
            continue  # A limit ends the reading in it.
        account.num_bytes = file.num_bytes
        if broken is None or file != broken.source:
            yield file, account


def spans_of(
    files: Sequence[Source], settings: ReadingSettings, place: Place = _BEGINNING
) -> Iterator[tuple[int, Span]]:
    """The spans of sources from a place on, each with the number of its source."""
    for number, file in enumerate(files[place.source :], start=place.source):
        start = place.span_start if number == place.source else 0
        named = partial(errors_explained, file, settings)
        with named():
            for span in iterate_spans(file, settings, start=start):
                yield number, replace(span, rows=named()(span.rows))
