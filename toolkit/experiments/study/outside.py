"""Runs outside a study, from whose checkpoints its models start."""

from pathlib import Path

from toolkit.run.comparison import Course, Hashes, Parting, parting
from toolkit.run.continuation import Continuation
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.folder import RunFolder
from toolkit.run.load import read_resolved


class OutsideRun:
    """A run to adopt, or that models name in `from`, as it was when the study was read."""

    def __init__(self, path: Path | str) -> None:
        self.folder = RunFolder(path)
        self.run, self.newest = read_resolved(self.folder.settings_file), self.folder.newest_manifest()

    def parting(self, run: DeclaredRun, hashes: Hashes = lambda settings: None) -> Parting:
        """The first step at which this run and a model differ; what the model leaves open until its start is chosen as
        in this run, as in a fork of it.
        """
        here = Continuation(self.newest).keep_choices(run)
        corpora = None if self.newest is None else hashes(here.settings)
        there = None if self.newest is None or corpora is None else self.newest.corpora
        return parting(Course(self.run, there), Course(here, corpora))
