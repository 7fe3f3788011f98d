"""Verification of a corpus: whether every file is as it was written. Location of the expected hash of each:

corpus.json            its own last line
shards, tokenizer/,
  dropped.jsonl        corpus.json
packing plans          their own headers; their summary: its own digest
folders with a corpus  the same, one level down: `holdout` is one

The files are listed, which is cheap, and then read by several threads at once. Damage raises nothing: it is collected,
so that one run names every damaged file.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from toolkit.core.errors import CorpusError
from toolkit.core.files import hash_file
from toolkit.core.text import counted
from toolkit.data.corpus.files import OnRead, read_through, size_if_there
from toolkit.data.corpus.manifest import (
    CORPUS_MANIFEST,
    DROPPED_FILE,
    CorpusManifest,
    read_damaged_manifest,
    read_manifest,
)
from toolkit.data.corpus.shards import file_names
from toolkit.data.rows.plan import is_whole
from toolkit.data.rows.plan_summary import is_summary_whole

_TOKENIZER_FOLDER, _HOLDOUT_FOLDER = "tokenizer", "holdout"
_PLAN = re.compile(r"(?P<shard>.+)\.plan-S\d+-m\d+-v\d+-(?P<sha256_idx>[0-9a-f]{16})", re.DOTALL)
_SUMMARY = re.compile(r"plans-S\d+-m\d+-v\d+-(?P<manifest_sha256>[0-9a-f]{16})")
_LOCK = re.compile(r"\..*\.lock", re.DOTALL)

_PLAN_FAULT = "the packing plan does not have the content that its header names"
_SUMMARY_FAULT = "the summary of the packing plans does not have the digest that it ends with"


@dataclass(frozen=True)
class Finding:
    """A file that is not as it was written, and what is wrong with it."""

    path: Path
    what: str


@dataclass(frozen=True)
class Verification:
    """Result of a verification; `num_files` counts missing ones too, and `unexpected_files` were not read."""

    folder: Path
    num_files: int
    num_bytes: int
    damaged: tuple[Finding, ...]
    unexpected_files: tuple[Path, ...]

    def __str__(self) -> str:
        if not self.damaged:
            return f"{self.folder} is intact: {counted(self.num_files, 'file')}, {self.num_bytes / 1e6:,.1f} MB."
        lines = "\n".join(f"  {finding.path}: {finding.what}" for finding in self.damaged)
        verb, them = ("is", "it") if len(self.damaged) == 1 else ("are", "them")
        plans = (
            " A packing plan, or the summary of all plans, can be deleted: it is rebuilt."
            if any("packing plan" in finding.what for finding in self.damaged)
            else ""
        )
        return (
            f"{len(self.damaged):,} of {counted(self.num_files, 'file')} of {self.folder} {verb} damaged or "
            f"missing:\n{lines}\n"
            f"Copy {them} again, or rebuild the corpus with `toolkit preprocess --overwrite`.{plans}"
        )


@dataclass(frozen=True)
class _CorpusFile:
    """A file: `examine` reads it and returns what is wrong with it, or None; it may raise OSError."""

    path: Path
    examine: Callable[[OnRead], str | None]


@dataclass
class _Survey:
    """The files of a corpus and of the corpora inside its folder.

    Attributes:
        files: files that have to be read.
        manifests: each corpus.json, already read, and what is wrong with it.
        unexpected_files: files in the folder that are not part of the corpus and have no hash.
    """

    files: list[_CorpusFile] = field(default_factory=list)
    manifests: list[tuple[Path, str | None]] = field(default_factory=list)
    unexpected_files: list[Path] = field(default_factory=list)


def verify_corpus(folder: Path) -> Verification:
    """Read every file of a corpus and compare it with its expected hash."""
    survey = _survey_corpus(folder)
    num_bytes = sum(size_if_there(file.path) or 0 for file in survey.files)
    faults = read_through("Verifying", [partial(_fault, file) for file in survey.files], num_bytes=num_bytes)
    found = [*survey.manifests, *((file.path, fault) for file, fault in zip(survey.files, faults, strict=True))]
    return Verification(
        folder=folder,
        num_files=len(found),
        num_bytes=num_bytes,
        damaged=tuple(Finding(path, what) for path, what in found if what is not None),
        unexpected_files=tuple(sorted(survey.unexpected_files)),
    )


def _fault(file: _CorpusFile, on_read: OnRead) -> str | None:
    try:
        return file.examine(on_read)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _survey_corpus(folder: Path) -> _Survey:
    """List the files of a corpus, reading only corpus.json."""
    if not (folder / CORPUS_MANIFEST).exists():
        read_manifest(folder)
    survey = _Survey()
    try:
        _list_folder(folder, survey, visited=set())
    except OSError as error:
        raise CorpusError(
            f"{error.filename or folder} cannot be read: {error.strerror}. Allow access to it, or copy the corpus "
            "again."
        ) from error
    return survey


def _list_folder(folder: Path, survey: _Survey, *, visited: set[Path]) -> None:
    visited.add(folder.resolve())
    manifest = _manifest(folder, survey)
    if manifest is None:
        return
    survey.files += _shard_files(folder, manifest)
    survey.files += _tokenizer_files(folder / _TOKENIZER_FOLDER, manifest, survey)
    # For each folder with shards: the hash of each shard's index, by the shard's name in that folder.
    places: dict[Path, dict[str, str]] = {}
    for number, name in enumerate(manifest.table.names):
        prefix = folder / name
        places.setdefault(prefix.parent, {})[prefix.name] = manifest.table.sha256_idx(number)
    for place, shards in places.items():
        plans = (path for path in _listed(place) if _is_plan(path.name, shards))
        survey.files += [_self_checked_file(path, is_whole, _PLAN_FAULT) for path in plans]
    known = {f"{name}{ending}" for name in places.get(folder, {}) for ending in (".bin", ".idx")}
    known |= {CORPUS_MANIFEST, _TOKENIZER_FOLDER}
    if manifest.dropped is not None:
        survey.files.append(_hashed_file(folder / DROPPED_FILE, manifest.dropped.sha256))
        known.add(DROPPED_FILE)
    for path in _listed(folder):
        # Processes hold a lock file, which is empty, while they write.
        is_lock = _LOCK.fullmatch(path.name) and path.is_file() and path.stat().st_size == 0
        if path.name in known or _is_plan(path.name, places.get(folder, {})) or is_lock:
            continue
        summary = _SUMMARY.fullmatch(path.name)
        is_corpus = path.name == _HOLDOUT_FOLDER or (path / CORPUS_MANIFEST).exists()
        if path.is_dir() and is_corpus and path.resolve() not in visited:
            _list_folder(path, survey, visited=visited)
        elif summary and manifest.manifest_sha256[:16] == summary["manifest_sha256"]:
            survey.files.append(_self_checked_file(path, is_summary_whole, _SUMMARY_FAULT))
        else:
            survey.unexpected_files.append(path)


def _manifest(folder: Path, survey: _Survey) -> CorpusManifest | None:
    """Content of corpus.json, as far as it is readable."""
    path = folder / CORPUS_MANIFEST
    try:
        manifest = read_manifest(folder)
    except CorpusError as error:
        guess = read_damaged_manifest(folder)
        doubt = "nothing can be compared with it" if guess is None else "what it says of other files may be wrong"
        reason = str(error).removeprefix(f"{path} ").split(". ")[0].replace("is damaged: its", "its", 1)
        survey.manifests.append((path, f"{reason}; {doubt}"))
        return guess
    survey.manifests.append((path, None))
    return manifest


def _shard_files(folder: Path, manifest: CorpusManifest) -> list[_CorpusFile]:
    itemsize = np.dtype(manifest.dtype).itemsize
    files = []
    for entry in manifest.shards:
        bin_path, idx_path = file_names(folder / entry.name)
        files.append(_hashed_file(bin_path, entry.sha256_bin, num_bytes=entry.tokens * itemsize))
        files.append(_hashed_file(idx_path, entry.sha256_idx))
    return files


def _tokenizer_files(folder: Path, manifest: CorpusManifest, survey: _Survey) -> list[_CorpusFile]:
    listed = {folder / name: expected for name, expected in manifest.tokenizer_files.items()}
    survey.unexpected_files += [path for path in sorted(folder.rglob("*")) if not path.is_dir() and path not in listed]
    return [_hashed_file(path, expected) for path, expected in listed.items()]


def _hashed_file(path: Path, expected: str, *, num_bytes: int | None = None) -> _CorpusFile:
    def examine(on_read: OnRead) -> str | None:
        if num_bytes is not None and (size := path.stat().st_size) != num_bytes:
            return f"it has {size:,} bytes, {CORPUS_MANIFEST} says {num_bytes:,}"
        found = hash_file(path, on_read=on_read)
        return None if found == expected else f"its SHA-256 is {found[:12]}, {CORPUS_MANIFEST} says {expected[:12]}"

    return _CorpusFile(path, examine)


def _self_checked_file(path: Path, is_intact: Callable[[Path], bool], fault: str) -> _CorpusFile:
    """A file that contains its own hash."""

    def examine(on_read: OnRead) -> str | None:
        found = None if is_intact(path) else fault
        on_read(path.stat().st_size)
        return found

    return _CorpusFile(path, examine)


def _is_plan(name: str, shards: dict[str, str]) -> bool:
    """True if this is the name of a plan of one of these shards with its current index."""
    found = _PLAN.fullmatch(name)
    return found is not None and shards.get(found["shard"], "")[:16] == found["sha256_idx"]


def _listed(folder: Path) -> list[Path]:
    return sorted(folder / name for name in os.listdir(folder)) if folder.is_dir() else []
