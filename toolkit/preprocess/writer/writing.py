"""Read, encode and write all sources: workers encode spans ahead, one writer makes the shards in order."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

from tokenization import BackendsDiffer, Tokenizer
from toolkit.core.console import console, progress
from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.data import token_dtype
from toolkit.preprocess.encoding import EncodedSpan, SpanEncoder, ahead
from toolkit.preprocess.readers import Span, iterate_spans
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.sources import Source, no_documents_error
from toolkit.preprocess.tokenizer_checks import BackendChoice, choose_backend, reference_backend
from toolkit.preprocess.writer.folder import HOLDOUT_FOLDER, start_over
from toolkit.preprocess.writer.ledger import Ledger, Place, Tally, read_ledger, record_step
from toolkit.preprocess.writer.shard_sequence import ShardSequence, SourceNames

SOURCE_GROUP_BYTES = 1 << 30
"""Consecutive sources are gathered until they have so many bytes, and share shards; a larger one is alone.

So many small files do not make as many small shards, and a group is a share of the work that depends on no other."""


def write_shards(
    files: Sequence[Source],
    output: Path,
    ledger: Ledger,
    *,
    tokenizer: Tokenizer,
    settings: PreprocessSettings,
) -> "Written":
    """Write what is missing, with the fast backend if it can be; all of it again if that one is found to differ."""
    texts = (row.text for _, span in _spans(files, Place(), settings) if span for row in span.read() if not row.reason)
    with closing(texts):
        engine = "reference" if ledger.reference_only else settings.engine
        choice = choose_backend(tokenizer, engine=engine, texts=texts)
    # Half a second of Python for a large vocabulary, while the backends work outside the interpreter's lock.
    threading.Thread(target=lambda: tokenizer.fingerprint, daemon=True).start()
    start = time.monotonic()
    try:
        sequence = _write_with(choice, files, output, ledger, tokenizer=tokenizer, settings=settings)
    except BackendsDiffer as error:
        choice = reference_backend(tokenizer, f"the fast backend differs: {error.difference}")
        # It compares some of the documents, so that finished shards may hold what it did not look at.
        made = counted(len((read_ledger(output) or ledger).shards), "finished shard")
        console().print(f"Starting over, {made} removed: {choice.why_reference}.")
        ledger = start_over(output, ledger.key, reference_only=True)
        sequence = _write_with(choice, files, output, ledger, tokenizer=tokenizer, settings=settings)
    return Written(sequence, choice, start)


@dataclass(frozen=True)
class Written:
    """Shards that are written, all closed; `start` is when reading them began, on the monotonic clock."""

    sequence: ShardSequence
    choice: BackendChoice
    start: float


def _write_with(
    choice: BackendChoice,
    files: Sequence[Source],
    output: Path,
    ledger: Ledger,
    *,
    tokenizer: Tokenizer,
    settings: PreprocessSettings,
) -> ShardSequence:
    sequence = ShardSequence(
        output,
        output / HOLDOUT_FOLDER,
        ledger,
        dtype=token_dtype(tokenizer.encoded_vocabulary_size),
        settings=settings,
        is_fast=choice.is_fast,
        on_step=partial(record_step, output),
    )
    encode = SpanEncoder(tokenizer, choice.backend, choice.most_characters, settings.holdout)
    try:
        _run(files, ledger.place, sequence, encode, settings)
    finally:
        sequence.abort()
    return sequence


def _run(
    files: Sequence[Source], place: Place, sequence: ShardSequence, encode: SpanEncoder, settings: PreprocessSettings
) -> None:
    remaining, last_of_group = files[place.source :], _last_of_groups([file.num_bytes for file in files])
    names = [SourceNames(file.name, recorded) for file, recorded in zip(files, recorded_names(files), strict=True)]
    tally, note = sequence.tally, _rates(sequence.tally)
    num_workers = settings.workers or len(os.sched_getaffinity(0))
    ends = list(accumulate((file.num_bytes for file in remaining), initial=0))

    def work(item: tuple[int, Span | None]) -> EncodedSpan | None:
        return None if item[1] is None else encode(item[1])

    with (
        progress("Preparing", total=ends[-1] / 1e6, unit="MB") as shown,
        closing(ahead(_spans(files, place, settings), work, num_workers=num_workers)) as results,
    ):
        for (number, _), encoded in () if sequence.is_full else results:
            sequence.begin_source(number, names[number])
            if encoded is None and number in last_of_group:
                sequence.end_group()
            if encoded is None:
                _check_bad_rows(tally, settings.max_bad_fraction)
                continue
            sequence.add(encoded)
            shown.update((ends[number - place.source] + encoded.end_bytes) / 1e6, note())
            if sequence.is_full:
                sequence.end_group()
                break
    # Once more for a limit, and for a run that was cut off between its last shard and the look at it.
    _check_bad_rows(tally, settings.max_bad_fraction)
    if not tally.documents:
        raise no_documents_error(files, tally.skipped)
    if not tally.kept.documents:
        raise UserError(
            f"all {tally.documents:,} documents are held out by --holdout {settings.holdout}; none is left for the "
            "corpus. Hold out less, or give more text."
        )


def _spans(files: Sequence[Source], place: Place, settings: PreprocessSettings) -> Iterator[tuple[int, Span | None]]:
    """The spans of all sources from a place on, each with the number of its source; None ends a source."""
    for number, file in enumerate(files[place.source :], start=place.source):
        start = place.span_start if number == place.source else 0
        spans = iterate_spans(file, text_field=settings.text_field, txt_documents=settings.txt_documents, start=start)
        yield from ((number, span) for span in spans)
        yield number, None


def recorded_names(files: Sequence[Source]) -> list[str]:
    """Names of the sources in corpus.json: by the commit on the hub; here relative to the folder that has all of them.

    The same files in another place hence give the same corpus.json.
    """
    folders = [os.path.dirname(file.name) for file in files if not file.revision]
    # The order is bytewise, so that what the first and the last have in common all have.
    common = os.path.join(os.path.commonpath([folders[0], folders[-1]]), "") if folders else ""
    return [_on_hub(file) if file.revision else file.name.removeprefix(common) for file in files]


def _on_hub(file: Source) -> str:
    organisation, name, path = file.name.removeprefix("hub://").split("/", maxsplit=2)
    return f"hub://{organisation}/{name}@{file.revision}/{path}"


def _last_of_groups(sizes: Sequence[int]) -> set[int]:
    """The numbers of the sources that end a group, from the sizes of all."""
    last, num_bytes = {len(sizes) - 1}, 0
    for number, size in enumerate(sizes):
        if size >= SOURCE_GROUP_BYTES and number:
            last.add(number - 1)
        num_bytes += size
        if num_bytes >= SOURCE_GROUP_BYTES:
            last.add(number)
        if number in last:
            num_bytes = 0
    return last


def _rates(tally: Tally) -> Callable[[], str]:
    """Rates at which the tally grows from now on, whenever it is asked."""
    start, documents, tokens, text_bytes = time.monotonic(), tally.documents, tally.tokens, tally.text_bytes

    def note() -> str:
        seconds = max(time.monotonic() - start, 1e-9)
        return (
            f"{(tally.documents - documents) / seconds:,.0f} documents/s, "
            f"{(tally.text_bytes - text_bytes) / 1e6 / seconds:,.1f} MB/s of text, "
            f"{(tally.tokens - tokens) / seconds:,.0f} tokens/s"
        )

    return note


def _check_bad_rows(tally: Tally, most: float) -> None:
    if tally.num_bad > most * tally.rows:
        raise UserError(
            f"{tally.num_bad:,} of {counted(tally.rows, 'row')} read so far ({tally.num_bad / tally.rows:.1%}) cannot "
            f"be used, more than --max-bad-fraction {most:g} allows:\n{tally.reasons()}\n"
            "Repair the source, name the field that holds the text with --text-field, or allow more."
        )
