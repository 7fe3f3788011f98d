"""Prepare a corpus: settings and sources in, a finished folder out."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tokenization
import toolkit
from toolkit.core.console import console
from toolkit.core.errors import CorpusError, UserError
from toolkit.core.files import cache_folder
from toolkit.core.text import counted
from toolkit.data import Corpus, CorpusManifest, DataSettings, Rows, open_rows, read_manifest, tokens_left_out
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.sources import Source, find_sources
from toolkit.preprocess.summary import PreprocessResult
from toolkit.preprocess.tokenizer_checks import ids_that_differ_in_transformers
from toolkit.preprocess.writer.folder import HOLDOUT_FOLDER, complete_corpus, locked_output, open_ledger
from toolkit.preprocess.writer.ledger import LEDGER_NAME, read_ledger
from toolkit.preprocess.writer.shard_sequence import OpenCorpus
from toolkit.preprocess.writer.writing import recorded_names, write_shards


def preprocess(sources: Sequence[str], output: Path, *, settings: PreprocessSettings) -> PreprocessResult:
    """Tokenise text into the corpus folder `output`.

    The result depends on the texts, the tokenizer and the settings alone, not on the number of workers. Interrupted
    and called again in the same way, it resumes after the last finished shard and ends with the same bytes.

    Args:
        sources: files, folders, globs and data sets on the hub; read in one order, bytewise by absolute path or
            `hub://repo/path`.
        output: the corpus folder; made if it is missing.

    Raises:
        UserError: a source or the folder cannot be used, or too many rows are bad.
        TokenizationError: the tokenizer cannot be used.
    """
    start = time.monotonic()
    tokenizer = tokenization.load(
        settings.tokenizer,
        mask_token=settings.mask_token,
        eod=settings.eod,
        rules=tokenization.EncodingRules(
            parse_special_text=None if settings.special_text is None else settings.special_text == "parse",
            add_bos=None if settings.add_bos else False,
            add_eod=settings.add_eod,
        ),
        cache_folder=cache_folder(),
    )
    if settings.add_eod:
        tokenizer.require_eod()
    for difference in ids_that_differ_in_transformers(tokenizer):
        console().print(f"{difference}.")
    files = find_sources(sources, subset=settings.subset, output=output)
    with locked_output(output):
        try:
            return _make(files, output, tokenizer, settings, start=start)
        except KeyboardInterrupt:
            stays, ledger = "no finished shard; the same command starts over", read_ledger(output)
            if ledger is not None and ledger.shards:
                kept = counted(len(ledger.shards), "finished shard")
                stays = f"{kept} in {output}; the same command resumes after {ledger.shards[-1].name}"
            console().print(f"Interrupted: {stays}.")
            raise
        except OSError as error:
            raise UserError(
                f"{error.filename or output} cannot be written: {error.strerror}. Free space or name another folder; "
                "started again in this one, it resumes after the last finished shard."
            ) from error


def _make(
    files: Sequence[Source],
    output: Path,
    tokenizer: tokenization.Tokenizer,
    settings: PreprocessSettings,
    *,
    start: float,
) -> PreprocessResult:
    key = _key(files, tokenizer, settings)
    ledger = open_ledger(output, key, engine=settings.engine, overwrite=settings.overwrite)
    num_kept, before = len(ledger.shards), ledger.tally
    done_before = (before.documents, before.tokens, before.text_bytes)
    written = write_shards(files, output, ledger, tokenizer=tokenizer, settings=settings)
    tally, seconds = written.sequence.tally, time.monotonic() - written.start
    if settings.holdout:
        _complete(written.sequence.held_out, tokenizer, skipped={})
    manifest = _complete(written.sequence.kept, tokenizer, skipped=tally.skipped)
    rows = left_out = None
    if settings.sequence_length is not None:
        rows, left_out = _pack(output, settings.sequence_length)
        if settings.holdout:
            # A small holdout may have no document long enough; a run that is to be evaluated on it will say so.
            with suppress(CorpusError):
                _pack(output / HOLDOUT_FOLDER, settings.sequence_length)
    (output / LEDGER_NAME).unlink(missing_ok=True)
    documents, tokens, text_bytes = (
        after - earlier
        for after, earlier in zip((tally.documents, tally.tokens, tally.text_bytes), done_before, strict=True)
    )
    return PreprocessResult(
        manifest=manifest,
        holdout=read_manifest(output / HOLDOUT_FOLDER) if settings.holdout else None,
        tokenizer=tokenizer,
        backend=written.choice,
        tally=tally,
        rows=rows,
        left_out=left_out,
        start_seconds=written.start - start,
        seconds=seconds,
        documents=documents,
        tokens=tokens,
        text_bytes=text_bytes,
        num_kept_shards=num_kept,
    )


def _complete(corpus: OpenCorpus, tokenizer: tokenization.Tokenizer, *, skipped: Mapping[str, int]) -> CorpusManifest:
    corpus.folder.mkdir(exist_ok=True)
    return complete_corpus(
        corpus.folder,
        tokenizer,
        shards=corpus.shards,
        dtype=corpus.dtype.name,
        special_text_hits=corpus.counts.special_text_hits,
        skipped=skipped,
    )


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


def _key(files: Sequence[Source], tokenizer: tokenization.Tokenizer, settings: PreprocessSettings) -> dict[str, Any]:
    """Everything that the shards of a corpus depend on, by the name that a user knows it by."""
    names = ("text_field", "txt_documents", "limit_documents", "limit_tokens", "shard_tokens", "holdout")
    given = settings.model_dump(mode="json", include=set(names))
    rules = tokenizer.rules
    return {
        **{f"--{name.replace('_', '-')}": given[name] for name in names},
        "--tokenizer": tokenizer.encoding_digest[:16],
        "--special-text": "parse" if rules.parse_special_text else "literal",
        "--no-bos (beginning of a document)": "the tokenizer's" if rules.add_bos else "none",
        "--eod, --no-eod (ids appended to a document)": tokenizer.appended_ids.tolist(),
        "toolkit": toolkit.__version__,
        **{library: _version(library) for library in ("tokenizers", "tiktoken", "sentencepiece", "gigatoken")},
        "sources": [
            [name, file.num_bytes, file.version] for name, file in zip(recorded_names(files), files, strict=True)
        ],
    }


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"
