"""Runs that a study did not train, and whose checkpoints its models begin from."""

from pathlib import Path

from toolkit.run.comparison import Course, Hashes, Parting, parting
from toolkit.run.continuation import Continuation
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.folder import RunFolder
from toolkit.run.load import read_resolved


class OutsideRun:
    """A run to adopt, or that models are `from`, as it was when the study was read."""

    def __init__(self, path: Path | str) -> None:
        self.folder = RunFolder(path)
        self.run, self.newest = read_resolved(self.folder.settings_file), self.folder.newest_manifest()

    def parting(self, run: DeclaredRun, hashes: Hashes = lambda settings: None) -> Parting:
        """The first step that it and a model do not make alike, where the model leaves to its start what this run's has
        chosen, as a fork of it would.
        """
        here = Continuation(self.newest).keep_choices(run)
        corpora = None if self.newest is None else hashes(here.settings)
        there = None if self.newest is None or corpora is None else self.newest.corpora
        return parting(Course(self.run, there), Course(here, corpora))
