"""Corpus preparation: settings and sources in, a finished folder out."""

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
from toolkit.preprocess.accounts import Counts
from toolkit.preprocess.screening.documents import Screening, open_screening, take_dropped
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.source_checks import spans_of
from toolkit.preprocess.sources import Source, find_sources
from toolkit.preprocess.summary import PreprocessResult
from toolkit.preprocess.tasks import load_tokenizer, submit, write_all
from toolkit.preprocess.text_sample import SAMPLED_CHARACTERS, encode_as_saved, look_at_sample
from toolkit.preprocess.tokenizer_checks import BackendChoice, choose_backend, ids_that_differ_in_transformers
from toolkit.preprocess.writer.begun import check_nobody_writes, forget_unfinished, open_unfinished, start_over
from toolkit.preprocess.writer.corpus import UnfinishedCorpus
from toolkit.preprocess.writer.folder import already_finished, command_digest, complete_corpus, finished_corpus
from toolkit.preprocess.writer.groups import (
    EXCLUDED,
    HOLDOUT_FOLDER,
    UNFINISHED_FOLDER,
    merge_groups,
    recorded_names,
    written_groups,
)
from toolkit.work.commands import Command

# The saved tokenizer is always compared at the end, which is soon enough for smaller corpora.
_LONG_BYTES, _NUM_TRIED = 1 << 29, 64


def preprocess(sources: Sequence[str], output: Path, *, settings: PreprocessSettings) -> PreprocessResult | None:
    """Tokenize text into the corpus folder `output`.

    The result depends only on the texts, the tokenizer and the settings, not on workers, tasks or where they run.
    If interrupted and called again in the same way, it writes the groups of sources that are not finished, and ends
    with the same bytes. Multiple commands may write one corpus at the same time: each takes groups that no other has.

    Args:
        sources: files, folders, globs and data sets on the hub; read in bytewise order of absolute path or
            `hub://repo/path`.
        output: the corpus folder; created if missing.

    Returns:
        None if the corpus is already finished, or if Slurm jobs or other commands finish it.

    Raises:
        UserError: a source or the folder cannot be used, or too many rows are bad.
        TokenizationError: the tokenizer cannot be used.
    """
    if settings.is_limited and (settings.tasks is not None or settings.executor != "local"):
        raise SettingsError(
            "--limit-documents and --limit-tokens need one command that reads all sources in order. Leave out the "
            "limit, or --executor and --tasks."
        )
    shortest, length = DataSettings.model_fields["min_length"].default, settings.sequence_length
    if length is not None and length < shortest:
        raise SettingsError(
            f"rows of --sequence-length {length:,} have no room for a segment: data.min_length is {shortest}. Give at "
            f"least {shortest}, or leave it out: training builds the packing plans for its own data.min_length."
        )
    start = time.monotonic()
    corpus, tokenizer = _described(sources, output, settings)
    for difference in ids_that_differ_in_transformers(tokenizer):
        console().print(f"{difference}.")
    try:
        with Command(output, name="toolkit preprocess", what="corpus", elsewhere="name another folder") as command:
            found, choice = _open(corpus, command, tokenizer)
            if found is None and settings.executor != "slurm":
                return _make(corpus, command, tokenizer, choice, start=start)
        if found is None:
            submit(corpus, sources)
            return None
        console().print(already_finished(output, found))
        if settings.sequence_length is not None:
            _pack(output, settings.sequence_length)
        return None
    except KeyboardInterrupt:
        done = f"{len(written_groups(output)):,} of {counted(len(corpus.groups), 'source group')}"
        raise KeyboardInterrupt(f"interrupted: {done} finished; the same command writes the rest") from None
    except OSError as error:
        raise UserError(
            f"{error.filename or output} cannot be written: {error.strerror}. Free space or name another folder; "
            "started again in this one, it resumes after the last finished source group."
        ) from error


def made_before(sources: Sequence[str], folder: Path, *, settings: PreprocessSettings) -> CorpusManifest | None:
    """The manifest in `folder` if the same command made that corpus and the sources are unmodified since; else None.

    Also None with `--overwrite`.
    """
    if settings.overwrite:
        return None
    corpus, tokenizer = _described(sources, folder, settings)
    return finished_corpus(folder, corpus.key, tokenizer)


def _described(
    sources: Sequence[str], output: Path, settings: PreprocessSettings
) -> tuple[UnfinishedCorpus, tokenization.Tokenizer]:
    """The requested corpus, whose folder is not read yet, and its tokenizer."""
    screening, tokenizer = open_screening(settings), load_tokenizer(settings)
    files = find_sources(sources, subset=settings.subset, exclude=settings.exclude or (), output=output)
    return UnfinishedCorpus(output, files, _key(files, tokenizer, settings, screening), settings, screening), tokenizer


def _open(
    corpus: UnfinishedCorpus, command: Command, tokenizer: tokenization.Tokenizer
) -> tuple[CorpusManifest | None, BackendChoice | None]:
    """Start the corpus, or join the commands that write it.

    Return its manifest if it is finished, and the backend if it was chosen now, for the whole corpus.
    """
    output, settings, choice = corpus.output, corpus.settings, None
    with corpus.locked():
        found = None if settings.overwrite else finished_corpus(output, corpus.key, tokenizer)
        if found is not None:
            _check_sizes(output, settings)
            forget_unfinished(output)
            _leave(command)
            return found, None
        if open_unfinished(output, corpus.key, settings) is None:
            if sum(file.num_bytes for file in corpus.files) >= _LONG_BYTES:
                beginnings = (text[:SAMPLED_CHARACTERS] for text in _texts(corpus))
                encode_as_saved(tokenizer, islice(beginnings, _NUM_TRIED))
            choice = choose_backend(
                tokenizer, engine=settings.engine, texts=_texts(corpus), num_threads=settings.workers
            )
            start_over(output, corpus.key, why_reference=choice.why_reference)
        elif settings.is_limited:
            check_nobody_writes(output)
        if settings.executor != "slurm":  # each Slurm job joins as a command of its own
            command.join(command_digest(corpus.key), otherwise="other sources or options")
    return None, choice


def _check_sizes(output: Path, settings: PreprocessSettings) -> None:
    """Raise CorpusError if a file of a finished corpus, or of its holdout, is missing or has the wrong size."""
    try:
        for folder in (output, output / HOLDOUT_FOLDER) if settings.holdout else (output,):
            Corpus(folder)
    except CorpusError as error:
        raise CorpusError(f"{str(error).removesuffix('.')}; --overwrite rebuilds it.") from error


def _texts(corpus: UnfinishedCorpus) -> Iterator[str]:
    """All documents of the readable sources, in order."""
    for file in corpus.files:
        with suppress(UserError):  # reported when its group is written
            for _, span in spans_of([file], corpus.settings):
                yield from (row.text for row in span.read() if not row.reason)


def _make(
    corpus: UnfinishedCorpus,
    command: Command,
    tokenizer: tokenization.Tokenizer,
    choice: BackendChoice | None,
    *,
    start: float,
) -> PreprocessResult | None:
    # Half a second of Python for a large vocabulary, overlapped with the backends, which release the GIL.
    threading.Thread(target=lambda: tokenizer.fingerprint, daemon=True).start()
    corpus.missing()
    before, begun = list(corpus.written.values()), time.monotonic()
    write_all(corpus, tokenizer, choice)
    seconds = time.monotonic() - begun
    with corpus.locked():
        made = _complete(corpus, tokenizer) if corpus.begin_merge() else None
        _leave(command)
    if made is None:
        console().print(f"Another command has finished the corpus in {corpus.output}.")
        return None
    manifest, rows, left_out = made
    return PreprocessResult(
        manifest=manifest,
        holdout=read_manifest(corpus.output / HOLDOUT_FOLDER) if corpus.settings.holdout else None,
        tokenizer=tokenizer,
        why_reference=corpus.why_reference,
        tally=corpus.tally,
        rows=rows,
        left_out=left_out,
        start_seconds=begun - start,
        seconds=seconds,
        done=reduce(Counts.minus, (group.tally.both for group in before), corpus.tally.both),
        num_kept_shards=sum(len(group.shards) for group in before),
    )


def _leave(command: Command) -> None:
    """Leave the finished, locked corpus; remove the commands' shared files if no other command works on it."""
    command.leave()
    if not command.others():
        shutil.rmtree(command.work, ignore_errors=True)


def _complete(
    corpus: UnfinishedCorpus, tokenizer: tokenization.Tokenizer
) -> tuple[CorpusManifest, Rows | None, str | None]:
    """Give the corpus its shards and all other files; return the manifest and the results of `_pack`."""
    output, settings, tally, rows, left_out = corpus.output, corpus.settings, corpus.tally, None, None
    unfinished, sources = output / UNFINISHED_FOLDER, tally.entries()
    text = look_at_sample(unfinished, tokenizer)
    shards, held_out = merge_groups(output, corpus.counted)
    corpora = [(output, shards, tally.kept, tally.skipped)]
    if settings.holdout:
        corpora.insert(0, (output / HOLDOUT_FOLDER, held_out, tally.held_out, {}))
    dropped = take_dropped(unfinished, output, sources)
    for folder, its, counts, skipped in corpora:
        manifest = complete_corpus(
            folder,
            tokenizer,
            shards=its,
            dtype=token_dtype(tokenizer.encoded_vocabulary_size).name,
            special_text_hits=counts.special_text_hits,
            text=text.model_copy(update={"bytes": counts.text_bytes, "unknown_tokens": counts.unknown_tokens}),
            skipped=skipped,
            sources=sources if folder == output else {},
            dropped=dropped if folder == output else None,
            command_sha256=command_digest(corpus.key) if folder == output else None,
        )
    if settings.sequence_length is not None:
        rows, left_out = _pack(output, settings.sequence_length)
        if settings.holdout:
            # A small holdout may have no document that is long enough; a run that evaluates on it will say so.
            with suppress(CorpusError):
                _pack(output / HOLDOUT_FOLDER, settings.sequence_length)
    forget_unfinished(output)
    return manifest, rows, left_out


def _pack(output: Path, sequence_length: int) -> tuple[Rows, str | None]:
    """Build the packing plans as training would on first use; also return how many tokens they leave out."""
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
    """Everything the shards of a corpus depend on, by the name users know it by."""
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
