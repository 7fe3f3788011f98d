"""Prepare a corpus: settings and sources in, a finished folder out."""

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

import tokenization
import toolkit
from toolkit.core.console import console
from toolkit.core.errors import CorpusError, SettingsError, UserError
from toolkit.core.machine import version_of
from toolkit.core.text import counted
from toolkit.data import (
    Corpus,
    CorpusManifest,
    DataSettings,
    Rows,
    open_rows,
    read_manifest,
    token_dtype,
    tokens_left_out,
)
from toolkit.preprocess.screening.documents import Screening, open_screening, take_dropped
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.sources import Source, find_sources
from toolkit.preprocess.summary import PreprocessResult
from toolkit.preprocess.tasks import load_tokenizer, submit, write_all
from toolkit.preprocess.text_losses import SAMPLED_CHARACTERS, encode_as_saved
from toolkit.preprocess.tokenizer_checks import BackendChoice, choose_backend, ids_that_differ_in_transformers
from toolkit.preprocess.unfinished import UnfinishedCorpus
from toolkit.preprocess.writer.folder import (
    already_finished,
    command_digest,
    complete_corpus,
    finished_corpus,
    open_ledger,
    start_over,
)
from toolkit.preprocess.writer.groups import EXCLUDED, GROUPS_FOLDER, HOLDOUT_FOLDER, group_ledgers, recorded_names
from toolkit.preprocess.writer.ledger import LEDGER_NAME, Counts, Ledger, read_ledger
from toolkit.preprocess.writer.writing import spans_of

# Of smaller corpora the end is near, where the tokenizer is compared in any case.
_LONG_BYTES, _NUM_TRIED = 1 << 29, 64


def preprocess(sources: Sequence[str], output: Path, *, settings: PreprocessSettings) -> PreprocessResult | None:
    """Tokenise text into the corpus folder `output`.

    The result depends on the texts, the tokenizer and the settings alone, not on workers, tasks and where they run.
    Interrupted and called again in the same way, it resumes after the last finished shards and ends with the same
    bytes. Several commands may write one corpus at the same time: each takes groups of sources that no other has.

    Args:
        sources: files, folders, globs and data sets on the hub; read in one order, bytewise by absolute path or
            `hub://repo/path`.
        output: the corpus folder; made if it is missing.

    Returns:
        None where the corpus is finished already, or jobs of Slurm, or other commands, finish it.

    Raises:
        UserError: a source or the folder cannot be used, or too many rows are bad.
        TokenizationError: the tokenizer cannot be used.
    """
    if settings.is_limited and (settings.tasks is not None or settings.executor != "local"):
        raise SettingsError(
            "--limit-documents and --limit-tokens end a corpus where only one that reads all before it can know. Leave "
            "out the limit, or --executor and --tasks."
        )
    start, screening = time.monotonic(), open_screening(settings)
    tokenizer = load_tokenizer(settings)
    for difference in ids_that_differ_in_transformers(tokenizer):
        console().print(f"{difference}.")
    files = find_sources(sources, subset=settings.subset, exclude=settings.exclude or (), output=output)
    corpus = UnfinishedCorpus(output, files, _key(files, tokenizer, settings, screening), settings, screening)
    try:
        with corpus.locked():
            found = None if settings.overwrite else finished_corpus(output, corpus.key, tokenizer)
            choice = _open(corpus, tokenizer) if found is None else None
        if found is not None:
            console().print(already_finished(output, found))
            if settings.sequence_length is not None:
                _pack(output, settings.sequence_length)
            return None
        if settings.executor == "slurm":
            submit(corpus, sources)
            return None
        return _make(corpus, tokenizer, choice, start=start)
    except KeyboardInterrupt:
        stays, kept = "no finished shard; the same command starts over", sum(len(done.shards) for done in _done(output))
        if kept:
            stays = f"{counted(kept, 'finished shard')} in {output}; the same command resumes after them"
        console().print(f"Interrupted: {stays}.")
        raise
    except OSError as error:
        raise UserError(
            f"{error.filename or output} cannot be written: {error.strerror}. Free space or name another folder; "
            "started again in this one, it resumes after the last finished shard."
        ) from error


def made_before(sources: Sequence[str], folder: Path, *, settings: PreprocessSettings) -> CorpusManifest | None:
    """The manifest in `folder` where the same command has made that corpus of sources not modified since, or None.

    None also under `--overwrite`.
    """
    if settings.overwrite:
        return None
    tokenizer, exclude = load_tokenizer(settings), settings.exclude or ()
    files = find_sources(sources, subset=settings.subset, exclude=exclude, output=folder)
    return finished_corpus(folder, _key(files, tokenizer, settings, open_screening(settings)), tokenizer)


def _open(corpus: UnfinishedCorpus, tokenizer: tokenization.Tokenizer) -> BackendChoice | None:
    """Begin the corpus, or go on with it; the backend that was chosen for all of it, if it was now."""
    ledger, choice = open_ledger(corpus.output, corpus.key, corpus.settings), None
    if ledger is None:
        if sum(file.num_bytes for file in corpus.files) >= _LONG_BYTES:
            beginnings = (text[:SAMPLED_CHARACTERS] for text in _texts(corpus))
            encode_as_saved(tokenizer, islice(beginnings, _NUM_TRIED))
        choice = choose_backend(tokenizer, engine=corpus.settings.engine, texts=_texts(corpus))
        start_over(corpus.output, corpus.key, why_reference=choice.why_reference)
    corpus.forget_failures()
    return choice


def _texts(corpus: UnfinishedCorpus) -> Iterator[str]:
    """All documents, in order, of the sources that can be read."""
    for file in corpus.files:
        with suppress(UserError):  # told when its group is written
            for _, span in spans_of([file], corpus.settings):
                yield from (row.text for row in span.read() if not row.reason)


def _done(output: Path) -> list[Ledger]:
    """What is done of an unfinished corpus."""
    ledger = read_ledger(output)
    return [ledger] if ledger is not None and ledger.is_whole else [*group_ledgers(output).values()]


def _make(
    corpus: UnfinishedCorpus, tokenizer: tokenization.Tokenizer, choice: BackendChoice | None, *, start: float
) -> PreprocessResult | None:
    # Half a second of Python for a large vocabulary, while the backends work outside the interpreter's lock.
    threading.Thread(target=lambda: tokenizer.fingerprint, daemon=True).start()
    output, settings, before, begun = corpus.output, corpus.settings, _done(corpus.output), time.monotonic()
    ledger = rows = left_out = None
    if write_all(corpus, tokenizer, choice):
        with corpus.locked():
            ledger, seconds = corpus.merge(tokenizer), time.monotonic() - begun
            if ledger is not None:
                manifest, rows, left_out = _complete(output, ledger, tokenizer, settings)
    if ledger is None:
        console().print(f"Another command finishes the corpus in {output}.")
        return None
    return PreprocessResult(
        manifest=manifest,
        holdout=read_manifest(output / HOLDOUT_FOLDER) if settings.holdout else None,
        tokenizer=tokenizer,
        why_reference=ledger.why_reference,
        tally=ledger.tally,
        rows=rows,
        left_out=left_out,
        start_seconds=begun - start,
        seconds=seconds,
        done=reduce(Counts.minus, (done.tally.both for done in before), ledger.tally.both),
        num_kept_shards=sum(len(done.shards) for done in before),
    )


def _complete(
    output: Path, ledger: Ledger, tokenizer: tokenization.Tokenizer, settings: PreprocessSettings
) -> tuple[CorpusManifest, Rows | None, str | None]:
    """Write what a corpus has besides its shards, which are there; the manifest, and what `_pack` gives."""
    tally, dtype, rows, left_out = ledger.tally, token_dtype(tokenizer.encoded_vocabulary_size).name, None, None
    corpora = [(output, ledger.shards, tally.kept, tally.skipped)]
    if settings.holdout:
        corpora.insert(0, (output / HOLDOUT_FOLDER, ledger.held_out, tally.held_out, {}))
    sources = tally.entries()
    dropped = take_dropped(output / GROUPS_FOLDER, output, sources)
    assert ledger.key is not None
    assert tally.text is not None
    for folder, shards, counts, skipped in corpora:
        manifest = complete_corpus(
            folder,
            tokenizer,
            shards=shards,
            dtype=dtype,
            special_text_hits=counts.special_text_hits,
            text=tally.text.model_copy(update={"bytes": counts.text_bytes, "unknown_tokens": counts.unknown_tokens}),
            skipped=skipped,
            sources=sources if folder == output else {},
            dropped=dropped if folder == output else None,
            command_sha256=command_digest(ledger.key) if folder == output else None,
        )
    if settings.sequence_length is not None:
        rows, left_out = _pack(output, settings.sequence_length)
        if settings.holdout:
            # A small holdout may have no document long enough; a run that is to be evaluated on it will say so.
            with suppress(CorpusError):
                _pack(output / HOLDOUT_FOLDER, settings.sequence_length)
    shutil.rmtree(output / GROUPS_FOLDER, ignore_errors=True)
    (output / LEDGER_NAME).unlink(missing_ok=True)
    return manifest, rows, left_out


def _pack(output: Path, sequence_length: int) -> tuple[Rows, str | None]:
    """Build the packing plans as training would on first use; also how many tokens they leave out."""
    settings, corpus = DataSettings(train=str(output), sequence_length=sequence_length), Corpus(output)
    try:
        rows = open_rows(corpus, settings, seed=0)
    except CorpusError as error:
        raise CorpusError(
            f"{error}\nAll shards are written; the same command without --sequence-length finishes the corpus."
        ) from error
    return rows, tokens_left_out(corpus, rows, settings)


def _key(
    files: Sequence[Source],
    tokenizer: tokenization.Tokenizer,
    settings: PreprocessSettings,
    screening: Screening | None,
) -> dict[str, Any]:
    """Everything that the shards of a corpus depend on, by the name that a user knows it by."""
    names = ("text_field", "txt_documents", "delimiter", "limit_documents", "limit_tokens", "shard_tokens", "holdout")
    given = settings.model_dump(mode="json", include=set(names))
    rules = tokenizer.rules
    return {
        **{f"--{name.replace('_', '-')}": given[name] for name in names},
        "--tokenizer": tokenizer.encoding_digest[:16],
        "--special-text": "parse" if rules.parse_special_text else "literal",
        "--no-bos (beginning of a document)": "the tokenizer's" if rules.add_bos else "none",
        "--eod, --no-eod (ids appended to a document)": tokenizer.appended_ids.tolist(),
        "toolkit": toolkit.__version__,
        **{library: version_of(library) for library in ("tokenizers", "tiktoken", "sentencepiece", "gigatoken")},
        **({} if screening is None else screening.key()),
        "sources": [
            [name, file.num_bytes, EXCLUDED if file.is_excluded else file.version]
            for name, file in zip(recorded_names(files), files, strict=True)
        ],
    }
