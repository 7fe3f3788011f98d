"""The folder of a corpus that is being written: its lock, what of an earlier run stays, and its last files."""

import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import toolkit
from tokenization import Tokenizer
from toolkit.core.cache import digest_of
from toolkit.core.errors import CorpusError, UserError
from toolkit.core.files import PARTIAL_FILES, atomic_directory, hash_folder
from toolkit.core.locks import holder_of, is_held, locked_folder
from toolkit.core.text import counted, first_few
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
from toolkit.preprocess.screening.documents import forget_screened
from toolkit.preprocess.settings import PreprocessSettings
from toolkit.preprocess.writer.groups import (
    EXCLUDED,
    GROUPS_FOLDER,
    HOLDOUT_FOLDER,
    group_folder,
    group_ledgers,
    group_slices,
    ledger_files,
    moves,
)
from toolkit.preprocess.writer.ledger import LEDGER_NAME, Ledger, begin_ledger, key_changes, read_ledger

TOKENIZER_FOLDER = "tokenizer"
LOCK_NAME = ".corpus.lock"


@contextmanager
def locked_output(folder: Path, *, timeout: float = 0) -> Iterator[None]:
    """Make the folder, and hold its lock, which one process has at a time, of all machines.

    `timeout`: seconds to wait for another one.
    """
    unwritable = "the output folder {} cannot be written or locked: {}. Name another folder."
    # A file, opened for writing: NFS grants no exclusive lock on a folder, which cannot be opened so.
    locked = locked_folder(
        folder, LOCK_NAME, timeout=timeout, in_use=_in_use(folder), unwritable=partial(unwritable.format, folder)
    )

    def forget_lock() -> None:
        # While it is still locked: filelock 4 tries again where a file that it opened meanwhile has lost its name. On
        # NFS it may not see that, or fail, so the file stays as long as many processes take the lock in turn.
        if not (folder / LEDGER_NAME).exists():
            (folder / LOCK_NAME).unlink(missing_ok=True)

    try:
        with locked, ExitStack() as stack:
            stack.callback(forget_lock)
            yield
    finally:
        with suppress(OSError):  # not empty: the usual case
            folder.rmdir()


def _in_use(folder: Path) -> str:
    return f"Another process is writing a corpus into {folder}. Wait for it, or name another folder."


def command_digest(key: Mapping[str, Any]) -> str:
    """SHA-256 of the options and sources in a corpus's key, whenever and with whatever it is made."""
    options = {name: value for name, value in key.items() if name.startswith("--")}
    sources = [(*name, version) for *name, version in key["sources"] if version != EXCLUDED]
    # The version of a file of this machine is a time, in nanoseconds.
    return digest_of([options, [source[: 2 + (not source[2].isdecimal())] for source in sources]])


def finished_corpus(folder: Path, key: Mapping[str, Any], tokenizer: Tokenizer) -> CorpusManifest | None:
    """The manifest of a finished corpus that the same command made of sources not modified since, or None."""
    if (folder / LEDGER_NAME).exists() or not (folder / CORPUS_MANIFEST).exists():
        return None
    with suppress(CorpusError):  # a damaged one is not this
        manifest, written = read_manifest(folder), (folder / CORPUS_MANIFEST).stat().st_mtime_ns
        is_same = (
            manifest.command_sha256 == command_digest(key) and manifest.tokenizer.fingerprint == tokenizer.fingerprint
        )
        if is_same and not any(version.isdecimal() and int(version) > written for *_, version in key["sources"]):
            return manifest
    return None


def already_finished(place: object, found: CorpusManifest) -> str:
    """What a command says that finds its corpus made."""
    return f"{place} is already finished: {found.documents:,} documents, {found.tokens:,} tokens."


def open_ledger(folder: Path, key: Mapping[str, Any], settings: PreprocessSettings) -> Ledger | None:
    """Decide what of the locked folder stays: the ledger to resume from; None where a corpus is to be begun.

    `key`: everything that the shards depend on but the backend, as plain data.
    """
    ledger = read_ledger(folder)
    # Once the corpus has the shards of all groups, what is left of these is to be removed.
    groups = {} if ledger is not None and ledger.is_whole else group_ledgers(folder)
    if (folder / CORPUS_MANIFEST).exists():
        reason = _finished(folder, ledger, key)
    elif (folder / LEDGER_NAME).exists():
        reason = None
    elif others := unexpected_names(folder):
        raise UserError(f"the output folder {folder} is not empty and holds no corpus ({others}). Name another folder.")
    else:
        return None
    reason = reason or _not_resumable(folder, ledger, groups, key, settings)
    if reason is None:
        assert ledger is not None
        if ledger.key != key:
            _check_nobody_writes(folder)
            for number in _with_other_sources(groups, ledger.key["sources"], key["sources"]):
                shutil.rmtree(group_folder(folder, number))
            forget_screened(folder / GROUPS_FOLDER)
            ledger = begin_ledger(folder, key, why_reference=ledger.why_reference)
        return ledger
    # Nothing is lost with a corpus that was begun and has no finished shard: after a mistake in the options, say.
    # A journal that cannot be read may be of an earlier version.
    unread = (path for path in (folder / GROUPS_FOLDER).glob("*/shard-*") if int(path.parent.name) not in groups)
    is_empty = ledger is not None and not (any(unread) or _num_shards(ledger, *groups.values()))
    if not settings.overwrite and ((folder / CORPUS_MANIFEST).exists() or not is_empty):
        raise UserError(f"{folder} holds {reason}name another folder, or start over with --overwrite.")
    return None


def _finished(folder: Path, ledger: Ledger | None, key: Mapping[str, Any]) -> str | None:
    """Description of the corpus in the folder, if it is finished; None if another one is being written in its place."""
    try:
        manifest = read_manifest(folder)
    except CorpusError:
        return "a damaged corpus: "
    if ledger is None or (ledger.shards == manifest.shards and ledger.key != key):
        return f"a finished corpus of {counted(manifest.documents, 'document')} from other sources or options: "
    return None


def _not_resumable(
    folder: Path,
    ledger: Ledger | None,
    groups: Mapping[int, Ledger],
    key: Mapping[str, Any],
    settings: PreprocessSettings,
) -> str | None:
    """Description of the unfinished corpus in the folder, if its shards cannot be kept."""
    if ledger is None:
        return f"an unfinished corpus whose journal, {LEDGER_NAME}, is damaged or of an earlier version: "
    files = [(path, path) for path in ledger_files(folder, ledger)]
    files += [pair for pairs, _ in moves(folder, groups) for pair in pairs]
    if missing := sorted(one.name for one, to in files if not (one.is_file() or to.is_file())):
        return f"an unfinished corpus of which {missing[0]} is missing: "
    # A source that failed may be mended; what was made of the others stays.
    failed = {int(file.stem) for file in (folder / GROUPS_FOLDER).glob("*error")}
    # Nor is a group lost that had a source too many.
    parts = ledger.key["sources"], key["sources"]
    out = {name for name, _, version in key["sources"] if version == EXCLUDED}
    both = ([source[:2] if source[0] in out else source for source in part] for part in parts)
    lost = [n for n in _with_other_sources(groups, *both) if _num_shards(groups[n]) and n not in failed]
    changes = key_changes(ledger.key if ledger.is_whole or lost else {**ledger.key, "sources": key["sources"]}, key)
    num_shards = _num_shards(ledger, *groups.values())
    if settings.engine == "reference" and not ledger.why_reference:
        changes.append(f"--engine: the fast backend made {counted(num_shards, 'finished shard')}, reference now")
    if not changes:
        return None
    kept, lines = counted(num_shards, "finished shard"), "".join(f"\n  {change}" for change in changes)
    return f"an unfinished corpus with {kept} that was started with other settings:{lines}\nResume with the same ones, "


def _with_other_sources(groups: Mapping[int, Ledger], *parts: Sequence[Any]) -> list[int]:
    """Groups whose sources are not the same in both lists of all sources."""
    then, now = ([part[its] for its in group_slices([size for _, size, *_ in part])] for part in parts)
    return [number for number in groups if then[number : number + 1] != now[number : number + 1]]


def _num_shards(*ledgers: Ledger) -> int:
    return sum(len(ledger.shards) + len(ledger.held_out) for ledger in ledgers)


def unexpected_names(folder: Path) -> str:
    """Names in a folder besides the lock and what a killed writer leaves, shortened; empty if nothing does."""
    ours = (LOCK_NAME, PARTIAL_FILES)
    return first_few(sorted(path.name for path in folder.iterdir() if not any(map(path.match, ours))))


def _check_nobody_writes(folder: Path) -> None:
    for lock in (folder / GROUPS_FOLDER).glob("*.lock"):
        if is_held(lock):
            raise UserError(f"{_in_use(folder)}{holder_of(lock)}")


def start_over(folder: Path, key: Mapping[str, Any], *, why_reference: str) -> Ledger:
    """Remove what an earlier run wrote into the locked folder, and note which corpus is begun."""
    _check_nobody_writes(folder)
    # First: groups of the earlier corpus must not pass for those of this one.
    shutil.rmtree(folder / GROUPS_FOLDER, ignore_errors=True)
    # From the first ledger on the folder counts as an unfinished corpus, whatever of the old one is still there.
    ledger = begin_ledger(folder, key, why_reference=why_reference)
    remove_rest(folder, keep=set())
    return ledger


def complete_corpus(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    shards: Sequence[ShardEntry],
    skipped: Mapping[str, int],
    **entries: Any,
) -> CorpusManifest:
    """Write `tokenizer/` and `corpus.json`, with more entries, into the folder of a corpus; returns the manifest."""
    # Whole and on the disk before corpus.json names its hashes: a power cut leaves no corpus with half a tokenizer.
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


def remove_rest(folder: Path, *, keep: Set[Path]) -> None:
    """Remove what an earlier run wrote, but for some shards' files. The manifests go first."""
    holdout = folder / HOLDOUT_FOLDER
    for place in (folder, holdout):
        (place / CORPUS_MANIFEST).unlink(missing_ok=True)
    for place in (folder, holdout):
        patterns = ("shard-[0-9]*", "plans-S[0-9]*", TOKENIZER_FOLDER, DROPPED_FILE, PARTIAL_FILES, ".plans.lock")
        for path in {path for pattern in patterns for path in place.glob(pattern)} - keep:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    with suppress(OSError):  # there is none, or shards are kept in it
        holdout.rmdir()
