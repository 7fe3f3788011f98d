"""The folder of a corpus that is being written: its lock, what of an earlier run stays, and its last files."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import toolkit
from tokenization import Tokenizer
from toolkit.core.errors import CorpusError, UserError
from toolkit.core.files import PARTIAL_FILES, atomic_directory, hash_folder
from toolkit.data import (
    MANIFEST_NAME,
    CorpusManifest,
    EncodingEntry,
    ShardEntry,
    SpecialIds,
    TokenizerEntry,
    read_manifest,
    write_manifest,
)
from toolkit.data.corpus.shards import file_names
from toolkit.preprocess.writer.ledger import LEDGER_NAME, Ledger, begin_ledger, read_ledger, resume_ledger

TOKENIZER_FOLDER = "tokenizer"
HOLDOUT_FOLDER = "holdout"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other processes from writing a corpus into it meanwhile.

    Raises:
        UserError: it cannot be made, or another process is at it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except FileExistsError as error:
        raise UserError(f"The output {folder} is a file. Name a folder.") from error
    except OSError as error:
        raise UserError(
            f"The output folder {folder} cannot be written: {error.strerror}. Name another folder."
        ) from error
    try:
        _lock(folder, descriptor)
        yield
    finally:
        with suppress(OSError):  # not empty: the usual case
            folder.rmdir()
        os.close(descriptor)


def _lock(folder: Path, descriptor: int) -> None:
    """Lock the folder itself: a lock that ends with the process and leaves no file behind."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(
            f"Another process is writing a corpus into {folder}. Wait for it, or name another folder."
        ) from error
    except OSError:
        # Some network file systems lock no folders; then it is up to the user.
        return


def prepare(folder: Path, key: str, *, overwrite: bool) -> tuple[Ledger, CorpusManifest | None]:
    """Decide what of the folder stays: the ledger to go on from, and the manifest if only the last touches are missing.

    Args:
        folder: the corpus folder, locked.
        key: hash of everything that decides the corpus.
        overwrite: a finished corpus may be replaced.

    Raises:
        UserError: the folder holds a finished corpus, or something else.
    """
    ledger = read_ledger(folder)
    if (folder / MANIFEST_NAME).exists():
        manifest = _manifest(folder)
        is_finished = manifest is None or ledger is None or ledger.shards == manifest.shards
        if manifest is not None and is_finished and ledger is not None and ledger.key == key:
            _remove_written(folder, (PARTIAL_FILES,), keep=set())
            return ledger, manifest
        if is_finished and not overwrite:
            what = "a damaged corpus" if manifest is None else f"a finished corpus of {manifest.documents:,} documents"
            raise UserError(f"{folder} holds {what}. Name another folder, or replace it with --overwrite.")
    elif not (folder / LEDGER_NAME).exists():
        others = sorted(path.name for path in folder.iterdir() if not path.match(PARTIAL_FILES))
        if others:
            raise UserError(
                f"The output folder {folder} is not empty and holds no corpus (but {', '.join(others[:5])}"
                f"{', ...' if len(others) > 5 else ''}). Name another folder."
            )
    elif ledger is not None and ledger.key == key and _are_there(folder, ledger):
        _remove(folder, keep=ledger)
        resume_ledger(folder, ledger)
        return ledger, None
    return begin_anew(folder, key, reference_only=False), None


def begin_anew(folder: Path, key: str, *, reference_only: bool) -> Ledger:
    """Remove what an earlier run wrote, and note which corpus is begun."""
    # From the first ledger on the folder counts as an unfinished corpus, whatever of the old one is still there.
    ledger = begin_ledger(folder, key, reference_only=reference_only)
    _remove(folder, keep=ledger)
    return ledger


def finish(folder: Path) -> None:
    """Remove what is there only while a corpus is not finished."""
    (folder / LEDGER_NAME).unlink(missing_ok=True)


def complete_corpus(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    shards: Sequence[ShardEntry],
    dtype: str,
    special_text_hits: int,
    skipped: Mapping[str, int],
) -> CorpusManifest:
    """Write `tokenizer/` and `corpus.json` into a folder; returns the manifest with its hash.

    Args:
        folder: of the corpus.
        tokenizer: the one that made the ids.
        shards: all of them, in order.
        dtype: numpy name of the type of the tokens.
        special_text_hits: how often a string of a special token stood in the text.
        skipped: rows left out, by reason.

    Raises:
        OSError: the tokenizer cannot be written.
        CorpusError: corpus.json cannot be written.
    """
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
            encoding=EncodingEntry(**asdict(tokenizer.rules)),
        ),
        tokenizer_files=hash_folder(folder / TOKENIZER_FOLDER),
        special_text_hits=special_text_hits,
        skipped=dict(sorted(skipped.items())),
        shards=tuple(shards),
    )
    return write_manifest(folder, manifest)


def _manifest(folder: Path) -> CorpusManifest | None:
    try:
        return read_manifest(folder)
    except CorpusError:
        return None


def _are_there(folder: Path, ledger: Ledger) -> bool:
    return all(path.is_file() for path in _files(folder, ledger))


def _files(folder: Path, ledger: Ledger) -> set[Path]:
    """The shards' files that a ledger names."""
    shards = {folder: ledger.shards, folder / HOLDOUT_FOLDER: ledger.held_out}
    return {path for place, entries in shards.items() for entry in entries for path in file_names(place / entry.name)}


def _remove(folder: Path, *, keep: Ledger) -> None:
    """Remove what an earlier run wrote, but for the shards of a ledger. The manifests go first."""
    for place in (folder, folder / HOLDOUT_FOLDER):
        (place / MANIFEST_NAME).unlink(missing_ok=True)
    patterns = ("shard-[0-9]*", "plans-S[0-9]*", TOKENIZER_FOLDER, PARTIAL_FILES, ".plans.lock")
    _remove_written(folder, patterns, keep=_files(folder, keep))
    with suppress(OSError):  # there is none, or shards are kept in it
        (folder / HOLDOUT_FOLDER).rmdir()


def _remove_written(folder: Path, patterns: Sequence[str], *, keep: set[Path]) -> None:
    for place in (folder, folder / HOLDOUT_FOLDER):
        for path in {path for pattern in patterns for path in place.glob(pattern)} - keep:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
