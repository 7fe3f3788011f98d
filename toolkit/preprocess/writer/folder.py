"""The folder of a corpus: its lock while it is written, its last files, and the removal of an earlier corpus."""

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import toolkit
from tokenization import Tokenizer
from toolkit.core.cache import digest_of
from toolkit.core.errors import CorpusError
from toolkit.core.files import PARTIAL_FILES, atomic_directory, hash_folder
from toolkit.core.locks import locked_folder
from toolkit.core.text import first_few
from toolkit.data import (
    CORPUS_MANIFEST,
    DROPPED_FILE,
    CorpusManifest,
    EncodingEntry,
    ShardEntry,
    SpecialIds,
    TokenizerEntry,
    read_manifest,
    write_manifest,
)
from toolkit.preprocess.writer.groups import EXCLUDED, HOLDOUT_FOLDER, is_unfinished
from toolkit.work.commands import work_folder

TOKENIZER_FOLDER = "tokenizer"
LOCK_NAME = ".lock"
SHARDS = ("shard-[0-9]*", DROPPED_FILE)
"""Patterns of the files that are moved to a corpus when all groups are written."""


@contextmanager
def locked_output(folder: Path, *, timeout: float = 0) -> Iterator[None]:
    """Create the folder and hold its lock, which only one process across all machines can have.

    `timeout`: seconds to wait for another process.
    """
    unwritable = "the output folder {} cannot be written or locked: {}. Name another folder."
    # The lock is a file: NFS grants an exclusive lock only on what is opened for writing, which a folder cannot be.
    locked = locked_folder(
        folder, LOCK_NAME, timeout=timeout, in_use=in_use(folder), unwritable=partial(unwritable.format, folder)
    )

    def forget_lock() -> None:
        # While it is still locked: filelock 4 retries if a file that it opened meanwhile was unlinked. On NFS it may
        # not see that, or fail, so the file stays as long as many processes take turns with the lock.
        if not is_unfinished(folder):
            (folder / LOCK_NAME).unlink(missing_ok=True)

    try:
        with locked, ExitStack() as stack:
            stack.callback(forget_lock)
            yield
    finally:
        with suppress(OSError):  # not empty: the usual case
            folder.rmdir()


def in_use(folder: Path) -> str:
    """Message for a command that may not write because another one does."""
    return f"Another process is writing a corpus into {folder}. Wait for it, or name another folder."


def command_digest(key: Mapping[str, Any]) -> str:
    """SHA-256 of the options and sources in a corpus's key, without modification times and software versions."""
    options = {name: value for name, value in key.items() if name.startswith("--")}
    sources = [(*name, version) for *name, version in key["sources"] if version != EXCLUDED]
    # The version of a local file is its modification time in nanoseconds.
    return digest_of([options, [source[: 2 + (not source[2].isdecimal())] for source in sources]])


def finished_corpus(folder: Path, key: Mapping[str, Any], tokenizer: Tokenizer) -> CorpusManifest | None:
    """The manifest of a finished corpus if the same command made it and its sources are unmodified since; else None."""
    if is_unfinished(folder) or not (folder / CORPUS_MANIFEST).exists():
        return None
    with suppress(CorpusError):  # a damaged corpus is not this one
        manifest, written = read_manifest(folder), (folder / CORPUS_MANIFEST).stat().st_mtime_ns
        is_same = (
            manifest.command_sha256 == command_digest(key) and manifest.tokenizer.fingerprint == tokenizer.fingerprint
        )
        if is_same and not any(version.isdecimal() and int(version) > written for *_, version in key["sources"]):
            return manifest
    return None


def already_finished(place: object, found: CorpusManifest) -> str:
    """Message for a command whose corpus already exists."""
    return f"{place} is already finished: {found.documents:,} documents, {found.tokens:,} tokens."


def complete_corpus(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    shards: Sequence[ShardEntry],
    skipped: Mapping[str, int],
    **entries: Any,
) -> CorpusManifest:
    """Write `tokenizer/` and `corpus.json`, with more entries, into the folder of a corpus; return the manifest."""
    # Complete and on disk before corpus.json has its hashes: a power cut leaves no corpus with half a tokenizer.
    with atomic_directory(folder / TOKENIZER_FOLDER) as unfinished:
        tokenizer.save(unfinished)
    manifest = CorpusManifest(
        documents=sum(entry.documents for entry in shards),
        tokens=sum(entry.tokens for entry in shards),
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
        skipped=dict(sorted(skipped.items())),
        shards=tuple(shards),
        **entries,
    )
    return write_manifest(folder, manifest)


def remove_rest(folder: Path, *, keep: Collection[str] = ()) -> None:
    """Remove what an earlier corpus, or an earlier attempt to complete this one, left. The manifests go first.

    `keep`: patterns of names that stay, such as `SHARDS`.
    """
    holdout = folder / HOLDOUT_FOLDER
    for place in (folder, holdout):
        (place / CORPUS_MANIFEST).unlink(missing_ok=True)
    for place in (folder, holdout):
        patterns = {*SHARDS, "plans-S[0-9]*", TOKENIZER_FOLDER, PARTIAL_FILES, ".plans.lock"} - {*keep}
        for path in {path for pattern in patterns for path in place.glob(pattern)}:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    with suppress(OSError):  # it is missing, or has other files
        holdout.rmdir()


def unexpected_names(folder: Path) -> str:
    """Names in a folder other than the lock and leftovers of a killed writer, shortened; empty if none."""
    ours = (LOCK_NAME, PARTIAL_FILES, work_folder(folder).name)
    return first_few(sorted(path.name for path in folder.iterdir() if not any(map(path.match, ours))))
