"""Prepare a corpus: settings and sources in, a finished folder out."""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import tokenization
import toolkit
from toolkit.core.console import progress
from toolkit.core.errors import CorpusError, UserError
from toolkit.data.corpus import Corpus
from toolkit.data.manifest import CorpusManifest, SpecialIds, TokenizerEntry, write_manifest
from toolkit.data.settings import DataSettings
from toolkit.data.windows import Rows, open_rows
from toolkit.preprocess.blocks import gather
from toolkit.preprocess.folder import TOKENIZER_FOLDER, finish, locked, prepare
from toolkit.preprocess.ledger import Ledger, Tally, record_step
from toolkit.preprocess.readers import read_rows
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.shard_sequence import ShardSequence
from toolkit.preprocess.sources import Source, find_sources

__all__ = ["PreprocessResult", "preprocess"]


@dataclass(frozen=True)
class PreprocessResult:
    """What was made, and how fast.

    Attributes:
        manifest: what corpus.json says.
        tokenizer: the tokenizer, with its mask token decided.
        tally: counts over all rows, those of an earlier, interrupted run included.
        rows: the packed rows, where a sequence length was given.
        seconds: how long this run took to read, encode and write.
        documents, tokens, text_bytes: what this run did in that time.
        num_kept_shards: finished shards of an interrupted run that were kept.
    """

    manifest: CorpusManifest
    tokenizer: tokenization.Tokenizer
    tally: Tally
    rows: Rows | None
    seconds: float
    documents: int
    tokens: int
    text_bytes: int
    num_kept_shards: int


def preprocess(sources: Sequence[str], output: Path, *, settings: PreprocessSettings) -> PreprocessResult:
    """Tokenise text files into the corpus folder `output`.

    The result depends on the texts, the tokenizer and the settings alone. Interrupted and called again in the same
    way, it goes on behind the last finished shard and ends with the same bytes.

    Args:
        sources: files, folders and globs; read in one order, bytewise by absolute path.
        output: the corpus folder; made if it is missing.
        settings: everything else.

    Raises:
        UserError: a source or the folder cannot be used, or too many rows are bad.
        TokenizationError: the tokenizer cannot be used.
    """
    files = find_sources(sources)
    tokenizer = tokenization.load(
        settings.tokenizer,
        mask_token=settings.mask_token,
        eod=settings.eod,
        rules=tokenization.EncodingRules(
            parse_special_text=settings.special_text == "parse", add_bos=settings.add_bos, add_eod=settings.add_eod
        ),
    )
    if settings.add_eod:
        tokenizer.require_eod()
    with locked(output):
        try:
            return _make(files, output, tokenizer, settings)
        except OSError as error:
            raise UserError(f"{error.filename or output} cannot be written: {error.strerror}.") from error


def _make(
    files: Sequence[Source], output: Path, tokenizer: tokenization.Tokenizer, settings: PreprocessSettings
) -> PreprocessResult:
    ledger, manifest = prepare(output, _key(files, tokenizer, settings), overwrite=settings.overwrite)
    num_kept, before = len(ledger.shards), ledger.tally
    done_before = (before.documents, before.tokens, before.text_bytes)
    start = time.monotonic()
    if manifest is None:
        tokenizer.save(output / TOKENIZER_FOLDER)
        sequence = ShardSequence(
            output, ledger, tokenizer=tokenizer, settings=settings, on_shard=partial(record_step, output)
        )
        try:
            _write_shards(files, ledger, sequence, tokenizer=tokenizer, settings=settings)
        finally:
            sequence.abort()
        manifest, tally = write_manifest(output, _describe(sequence, tokenizer)), sequence.tally
    else:
        tally = ledger.tally
    seconds = time.monotonic() - start
    rows = None if settings.sequence_length is None else _pack(output, settings.sequence_length)
    finish(output)
    documents, tokens, text_bytes = (
        after - earlier
        for after, earlier in zip((tally.documents, tally.tokens, tally.text_bytes), done_before, strict=True)
    )
    return PreprocessResult(manifest, tokenizer, tally, rows, seconds, documents, tokens, text_bytes, num_kept)


def _write_shards(
    files: Sequence[Source],
    ledger: Ledger,
    sequence: ShardSequence,
    *,
    tokenizer: tokenization.Tokenizer,
    settings: PreprocessSettings,
) -> None:
    """Read, encode and write, from where the ledger ends to the last source or a limit."""
    remaining = files[ledger.source :]
    tally, note = sequence.tally, _rates(sequence.tally)
    num_bytes_done = 0
    with progress("Preparing", total=sum(file.num_bytes for file in remaining) / 1e6, unit="MB") as shown:
        for number, file in enumerate(remaining, start=ledger.source):
            if sequence.is_full:
                break
            sequence.begin_source(number, file.name)
            rows_done = ledger.rows if number == ledger.source else 0
            rows = read_rows(file, text_field=settings.text_field, txt_documents=settings.txt_documents)
            for block in gather(itertools.islice(rows, rows_done, None), first_row=rows_done):
                ids, lengths = tokenizer.encode_batch(block.texts)
                sequence.add(block, ids, lengths)
                shown.update((num_bytes_done + block.end) / 1e6, note())
                if sequence.is_full:
                    break
            sequence.end_source()
            num_bytes_done += file.num_bytes
            _check_bad_rows(tally, settings.max_bad_fraction)
    # Once more for a run that was cut off between its last shard and the look at it.
    _check_bad_rows(tally, settings.max_bad_fraction)
    if not tally.documents:
        raise UserError(_nothing_found(files, tally))


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
            f"{tally.num_bad:,} of {tally.rows:,} rows read so far ({tally.num_bad / tally.rows:.1%}) cannot be used, "
            f"more than --max-bad-fraction {most:g} allows:\n{tally.reasons()}\n"
            "Repair the source, name the field that holds the text with --text-field, or allow more."
        )


def _nothing_found(files: Sequence[Source], tally: Tally) -> str:
    what = f"{files[0].name}" if len(files) == 1 else f"{len(files):,} files"
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in tally.skipped.items()) or "no row at all"
    return f"There is no document in {what}: {skipped}."


def _describe(sequence: ShardSequence, tokenizer: tokenization.Tokenizer) -> CorpusManifest:
    tally = sequence.tally
    return CorpusManifest(
        documents=tally.documents,
        tokens=tally.tokens,
        dtype=sequence.dtype.name,
        toolkit_version=toolkit.__version__,
        tokenizer=TokenizerEntry(
            fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocabulary_size,
            special_ids=SpecialIds(**tokenizer.special_ids),
            all_special_ids=tokenizer.all_special_ids,
        ),
        special_text_hits=tally.special_text_hits,
        skipped=dict(sorted(tally.skipped.items())),
        shards=tuple(sequence.shards),
    )


def _pack(output: Path, sequence_length: int) -> Rows:
    """Build the packing plans as training would on first use."""
    settings = DataSettings(train=str(output), sequence_length=sequence_length)
    try:
        return open_rows(Corpus(output), settings, seed=0)
    except CorpusError as error:
        raise CorpusError(
            f"{error}\nAll shards are written; the same command without --sequence-length finishes the corpus."
        ) from error


def _key(files: Sequence[Source], tokenizer: tokenization.Tokenizer, settings: PreprocessSettings) -> str:
    """Hash of everything that decides the bytes of a corpus."""
    not_deciding = {"tokenizer", "sequence_length", "max_bad_fraction", "overwrite"}
    decides = {
        "settings": settings.model_dump(mode="json", exclude=not_deciding),
        "tokenizer": tokenizer.files(),
        "eod": tokenizer.eod_id,
        "sources": [(file.name, file.num_bytes, file.modified_ns) for file in files],
        "versions": (toolkit.__version__, version("tokenizers")),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
