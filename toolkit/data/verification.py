"""Is every file of a corpus as it was written?

The files are listed, which costs little, and then read by several threads at once. Nothing is raised for damage: all
of it is gathered, so that one run names every file.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from toolkit.core.console import progress
from toolkit.data.corpus_files import CorpusFile, survey_corpus

__all__ = ["Finding", "Verification", "verify_corpus"]

_SECONDS_BETWEEN_UPDATES = 0.2


@dataclass(frozen=True)
class Finding:
    """A file that is not as it was written, and what is wrong with it."""

    path: Path
    what: str


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        folder: the corpus.
        num_files: files that belong to it, missing ones included.
        num_bytes: how much was read, in bytes.
        damaged: files that are damaged or missing.
        strangers: what lies in the folder and does not belong to the corpus; it was not looked at.
    """

    folder: Path
    num_files: int
    num_bytes: int
    damaged: tuple[Finding, ...]
    strangers: tuple[Path, ...]

    def __str__(self) -> str:
        if not self.damaged:
            return f"{self.folder} is intact: {self.num_files:,} files, {self.num_bytes / 1e6:,.1f} MB."
        lines = "\n".join(f"  {finding.path}: {finding.what}" for finding in self.damaged)
        return (
            f"{len(self.damaged):,} of the {self.num_files:,} files of {self.folder} are damaged or missing:\n{lines}\n"
            "Copy them again, or make the corpus anew with `toolkit preprocess --overwrite`. A packing plan, or the "
            "summary of all plans, may simply be deleted: it is made again."
        )


class _Counter:
    """Bytes read so far, counted by several threads."""

    def __init__(self) -> None:
        self.total, self._lock = 0, Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.total += count


def verify_corpus(folder: Path) -> Verification:
    """Read every file of a corpus and compare it with what vouches for it.

    Raises:
        CorpusError: there is no corpus in the folder, or the folder cannot be read.
    """
    survey = survey_corpus(folder)
    faults, num_bytes = _examine(survey.files)
    found = [*survey.manifests, *((file.path, fault) for file, fault in zip(survey.files, faults, strict=True))]
    return Verification(
        folder=folder,
        num_files=len(found),
        num_bytes=num_bytes,
        damaged=tuple(Finding(path, what) for path, what in found if what is not None),
        strangers=tuple(sorted(survey.strangers)),
    )


def _examine(files: Sequence[CorpusFile]) -> tuple[list[str | None], int]:
    """What is wrong with each file, and how many bytes were read."""
    counter = _Counter()
    total = sum(_size(file.path) for file in files)
    with progress("Verifying", total=total / 1e6, unit="MB") as shown, ThreadPoolExecutor(_num_threads()) as pool:
        futures: list[Future[str | None]] = [pool.submit(_fault, file, counter) for file in files]
        try:
            left = set(futures)
            while left:
                left = wait(left, timeout=_SECONDS_BETWEEN_UPDATES).not_done
                shown.update(counter.total / 1e6)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures], counter.total


def _fault(file: CorpusFile, counter: _Counter) -> str | None:
    try:
        return file.examine(counter.add)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _num_threads() -> int:
    return min(8, len(os.sched_getaffinity(0)) + 1)
