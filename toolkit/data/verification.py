"""Verification of a corpus: whether every file is as it was written.

The files are listed, which costs little, and then read by several threads at once. Nothing is raised for damage: all
of it is gathered, so that one run names every file.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from toolkit.core.text import counted
from toolkit.data.corpus.read_through import OnRead, read_through
from toolkit.data.corpus_files import CorpusFile, survey_corpus


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
        num_bytes: how large they are together, in bytes.
        damaged: files that are damaged or missing.
        unexpected_files: files in the folder that are not part of the corpus; they were not read.
    """

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


def verify_corpus(folder: Path) -> Verification:
    """Read every file of a corpus and compare it with its expected hash.

    Raises:
        CorpusError: there is no corpus in the folder, or the folder cannot be read.
    """
    survey = survey_corpus(folder)
    num_bytes = sum(_size(file.path) for file in survey.files)
    faults = read_through("Verifying", [partial(_fault, file) for file in survey.files], num_bytes=num_bytes)
    found = [*survey.manifests, *((file.path, fault) for file, fault in zip(survey.files, faults, strict=True))]
    return Verification(
        folder=folder,
        num_files=len(found),
        num_bytes=num_bytes,
        damaged=tuple(Finding(path, what) for path, what in found if what is not None),
        unexpected_files=tuple(sorted(survey.unexpected_files)),
    )


def _fault(file: CorpusFile, on_read: OnRead) -> str | None:
    try:
        return file.examine(on_read)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
