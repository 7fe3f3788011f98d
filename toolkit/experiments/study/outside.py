"""Runs that a study did not train, and whose checkpoints its models begin from."""

from collections.abc import Mapping
from pathlib import Path

from toolkit.run.comparison import Course, Parting, parting
from toolkit.run.continuation import Continuation, hashes_of_first_weights
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.folder import RunFolder
from toolkit.run.load import read_resolved


class OutsideRun:
    """A run to adopt, or that models are `from`, as it was when the study was read."""

    def __init__(self, path: Path | str) -> None:
        self.folder = RunFolder(path)
        self.run, self.newest = read_resolved(self.folder.settings_file), self.folder.newest_manifest()

    def parting(self, run: DeclaredRun, corpora: Mapping[str, str] | None = None) -> Parting:
        """The first step that it and a model do not make alike, where the model leaves to its start what this run's has
        chosen, as a fork of it would. Without `corpora` (`RunCorpora.hashes`), those of one path are the same.
        """
        there = None if self.newest is None or corpora is None else self.newest.corpora
        here = Continuation(self.newest).keep_choices(run)
        hashes = None if there is None or corpora is None else {**corpora, **hashes_of_first_weights(here.settings)}
        return parting(Course(self.run, there), Course(here, hashes))
