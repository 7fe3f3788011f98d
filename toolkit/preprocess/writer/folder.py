"""The folder of a corpus that is being written: its lock, what of an earlier run stays, and its last files."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import toolkit
from tokenization import Tokenizer
from toolkit.core.errors import CorpusError, UserError
from toolkit.core.files import PARTIAL_FILES, atomic_directory, hash_folder
from toolkit.core.locks import holder_of, try_lock
from toolkit.core.text import counted, first_few
from toolkit.data import (
    CORPUS_MANIFEST,
    CorpusManifest,
    EncodingEntry,
    ShardEntry,
    SpecialIds,
    TokenizerEntry,
    read_manifest,
    write_manifest,
)
from toolkit.data.corpus.shards import file_names
from toolkit.preprocess.writer.ledger import LEDGER_NAME, Ledger, begin_ledger, key_changes, read_ledger

TOKENIZER_FOLDER = "tokenizer"
HOLDOUT_FOLDER = "holdout"
LOCK_NAME = ".corpus.lock"


@contextmanager
def locked_output(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other processes from writing a corpus into it meanwhile, on this machine or another."""
    path = folder / LOCK_NAME
    try:
        # A file, opened for writing: NFS grants no exclusive lock on a folder, which cannot be opened so.
        lock = try_lock(path)
    except FileExistsError as error:
        raise UserError(f"the output {folder} is a file. Name a folder.") from error
    except OSError as error:
        raise UserError(
            f"the output folder {folder} cannot be written or locked: {error.strerror}. Name another folder."
        ) from error
    if lock is None:
        raise UserError(
            f"Another process is writing a corpus into {folder}. Wait for it, or name another folder.{holder_of(path)}"
        )
    try:
        yield
    finally:
        # While it is still locked: filelock 4 tries again where a file that it opened meanwhile has lost its name.
        path.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # not empty: the usual case
            folder.rmdir()


def open_ledger(
    folder: Path, key: Mapping[str, Any], *, engine: Literal["auto", "reference"], overwrite: bool
) -> Ledger:
    """Decide what of the locked folder stays: the ledger to resume from, or a new one.

    Args:
        key: everything that the shards depend on, as plain data.
        engine: `reference` forbids shards of the fast backend.
        overwrite: a corpus in the folder may be replaced.
    """
    ledger = read_ledger(folder)
    if (folder / CORPUS_MANIFEST).exists():
        reason = _finished(folder, ledger, key)
    elif (folder / LEDGER_NAME).exists():
        reason = None
    else:
        if others := unexpected_names(folder):
            raise UserError(
                f"the output folder {folder} is not empty and holds no corpus ({others}). Name another folder."
            )
        return start_over(folder, key, reference_only=False)
    reason = reason or _not_resumable(folder, ledger, key, engine=engine)
    if reason is None:
        assert ledger is not None
        _remove(folder, keep=ledger)
        # A line that was being written when the process ended is cut off, so that steps can follow.
        os.truncate(folder / LEDGER_NAME, ledger.num_bytes)
        return ledger
    # Nothing is lost with a corpus that was begun and has no finished shard: after a mistake in the options, say.
    is_empty = ledger is not None and ledger.key is not None and not ledger.shards
    if not overwrite and ((folder / CORPUS_MANIFEST).exists() or not is_empty):
        raise UserError(f"{folder} holds {reason}name another folder, or start over with --overwrite.")
    return start_over(folder, key, reference_only=False)


def _finished(folder: Path, ledger: Ledger | None, key: Mapping[str, Any]) -> str | None:
    """Description of the corpus in the folder, if it is finished; None if another one is being written in its place."""
    try:
        manifest = read_manifest(folder)
    except CorpusError:
        return "a damaged corpus: "
    if ledger is None or (ledger.shards == manifest.shards and ledger.key != key):
        return f"a finished corpus of {counted(manifest.documents, 'document')}: "
    return None


def _not_resumable(
    folder: Path, ledger: Ledger | None, key: Mapping[str, Any], *, engine: Literal["auto", "reference"]
) -> str | None:
    """Description of the unfinished corpus in the folder, if its shards cannot be kept."""
    if ledger is None:
        return f"an unfinished corpus whose journal, {LEDGER_NAME}, is damaged: "
    if ledger.key is None:
        return "an unfinished corpus of an earlier version of the toolkit, which only that version can finish: "
    if missing := sorted(path.name for path in _files(folder, ledger) if not path.is_file()):
        return f"an unfinished corpus of which {missing[0]} is missing: "
    changes = key_changes(ledger.key, key)
    if engine == "reference" and ledger.num_fast:
        changes.append(f"--engine: the fast backend made {counted(ledger.num_fast, 'finished shard')}, reference now")
    if not changes:
        return None
    kept = counted(len(ledger.shards) + len(ledger.held_out), "finished shard")
    lines = "".join(f"\n  {change}" for change in changes)
    return f"an unfinished corpus with {kept} that was started with other settings:{lines}\nResume with the same ones, "


def unexpected_names(folder: Path) -> str:
    """Names in a folder besides the lock and what a killed writer leaves, shortened; empty if nothing does."""
    ours = (LOCK_NAME, PARTIAL_FILES)
    return first_few(sorted(path.name for path in folder.iterdir() if not any(map(path.match, ours))))


def start_over(folder: Path, key: Mapping[str, Any] | None, *, reference_only: bool) -> Ledger:
    """Remove what an earlier run wrote, and note which corpus is begun."""
    # From the first ledger on the folder counts as an unfinished corpus, whatever of the old one is still there.
    ledger = begin_ledger(folder, key, reference_only=reference_only)
    _remove(folder, keep=ledger)
    return ledger


def complete_corpus(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    shards: Sequence[ShardEntry],
    dtype: str,
    special_text_hits: int,
    skipped: Mapping[str, int],
) -> CorpusManifest:
    """Write `tokenizer/` and `corpus.json` into the folder of a corpus; returns the manifest with its hash."""
    # Whole and on the disk before corpus.json names its hashes: a power cut leaves no corpus with half a tokenizer.
    with atomic_directory(folder / TOKENIZER_FOLDER) as unfinished:
        tokenizer.save(unfinished)
    manifest = CorpusManifest(
        documents=sum(entry.documents for entry in shards),
        tokens=sum(entry.tokens for entry in shards),
        dtype=dtype,
        toolkit_version=toolkit.__version__,
        tokenizer=TokenizerEntry(
            fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocabulary_size,
            special_ids=SpecialIds(**tokenizer.special_ids),
            all_special_ids=tokenizer.all_special_ids,
            source=tokenizer.source,
            encoding=EncodingEntry(**tokenizer.encoding()),
        ),
        tokenizer_files=hash_folder(folder / TOKENIZER_FOLDER),
        special_text_hits=special_text_hits,
        skipped=dict(sorted(skipped.items())),
        shards=tuple(shards),
    )
    return write_manifest(folder, manifest)


def _files(folder: Path, ledger: Ledger) -> set[Path]:
    shards = {folder: ledger.shards, folder / HOLDOUT_FOLDER: ledger.held_out}
    return {path for place, entries in shards.items() for entry in entries for path in file_names(place / entry.name)}


def _remove(folder: Path, *, keep: Ledger) -> None:
    """Remove what an earlier run wrote, but for the shards of a ledger. The manifests go first."""
    kept, holdout = _files(folder, keep), folder / HOLDOUT_FOLDER
    for place in (folder, holdout):
        (place / CORPUS_MANIFEST).unlink(missing_ok=True)
    for place in (folder, holdout):
        patterns = ("shard-[0-9]*", "plans-S[0-9]*", TOKENIZER_FOLDER, PARTIAL_FILES, ".plans.lock")
        for path in {path for pattern in patterns for path in place.glob(pattern)} - kept:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    with suppress(OSError):  # there is none, or shards are kept in it
        holdout.rmdir()
