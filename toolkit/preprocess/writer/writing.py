"""Read, encode and write all sources: workers encode spans ahead, one writer makes the shards in order."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate
from pathlib import Path

from tokenization import EncodersDiffer, Tokenizer
from toolkit.core.console import console, progress
from toolkit.core.errors import UserError
from toolkit.core.text import counted
from toolkit.data import token_dtype
from toolkit.preprocess.encoders import EncoderChoice, choose_encoder, reference_encoder
from toolkit.preprocess.encoding import EncodedSpan, SpanEncoder, ahead
from toolkit.preprocess.readers import Span, iterate_spans
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.sources import Source, no_documents_error
from toolkit.preprocess.writer.folder import HOLDOUT_FOLDER, begin_anew
from toolkit.preprocess.writer.ledger import Ledger, Place, Tally, record_step
from toolkit.preprocess.writer.shard_sequence import ShardSequence


def write_shards(
    files: Sequence[Source],
    output: Path,
    ledger: Ledger,
    *,
    tokenizer: Tokenizer,
    settings: PreprocessSettings,
) -> tuple[ShardSequence, EncoderChoice]:
    """Write what is missing, with the fast encoder if it can be; all of it anew if that one is found to differ."""
    texts = (row.text for _, span in _spans(files, Place(), settings) if span for row in span.read() if not row.reason)
    with closing(texts):
        engine = "reference" if ledger.reference_only else settings.engine
        choice = choose_encoder(tokenizer, engine=engine, texts=texts)
    # Half a second of Python for a large vocabulary, while the encoders work outside the interpreter's lock.
    threading.Thread(target=lambda: tokenizer.fingerprint, daemon=True).start()
    try:
        return _write_with(choice, files, output, ledger, tokenizer=tokenizer, settings=settings), choice
    except EncodersDiffer as error:
        choice = reference_encoder(tokenizer, f"the fast encoder differs: {error.difference}")
    console().print(f"Starting again: {choice.why_reference}.")
    ledger = begin_anew(output, ledger.key, reference_only=True)
    return _write_with(choice, files, output, ledger, tokenizer=tokenizer, settings=settings), choice


def _write_with(
    choice: EncoderChoice,
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
        on_step=partial(record_step, output),
    )
    encode = SpanEncoder(tokenizer, choice.encoder, choice.most_characters, settings.holdout)
    try:
        _run(files, ledger.place, sequence, encode, settings)
    finally:
        sequence.abort()
    return sequence


def _run(
    files: Sequence[Source], place: Place, sequence: ShardSequence, encode: SpanEncoder, settings: PreprocessSettings
) -> None:
    """Read, encode and write, from a place to the last source or a limit."""
    remaining = files[place.source :]
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
            sequence.begin_source(number, files[number].name)
            if encoded is None:
                sequence.end_source()
                _check_bad_rows(tally, settings.max_bad_fraction)
                continue
            sequence.add(encoded)
            shown.update((ends[number - place.source] + encoded.end_bytes) / 1e6, note())
            if sequence.is_full:
                sequence.end_source()
                break
    # Once more for a limit, and for a run that was cut off between its last shard and the look at it.
    _check_bad_rows(tally, settings.max_bad_fraction)
    if not tally.documents:
        raise no_documents_error(files, tally.skipped)
    if not tally.kept.documents:
        raise UserError(
            f"All {tally.documents:,} documents are held out by --holdout {settings.holdout}; none is left for the "
            "corpus. Hold out less, or give more text."
        )


def _spans(files: Sequence[Source], place: Place, settings: PreprocessSettings) -> Iterator[tuple[int, Span | None]]:
    """The spans of all sources from a place on, each with the number of its source; None ends a source."""
    for number, file in enumerate(files[place.source :], start=place.source):
        start = place.span_start if number == place.source else 0
        spans = iterate_spans(file, text_field=settings.text_field, txt_documents=settings.txt_documents, start=start)
        yield from ((number, span) for span in spans)
        yield number, None


def _rates(tally: Tally) -> Callable[[], str]:
    """How fast the tally grows from now on, whenever it is asked."""
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
