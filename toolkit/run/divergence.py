"""Divergence of a run, recorded in its folder: a run is a function of its settings, and would diverge again."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict, ValidationError

from toolkit.core.errors import NonFiniteError
from toolkit.core.files import atomic_write
from toolkit.run.comparison import Course, Hashes, parting
from toolkit.run.continuation import with_choices
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.folder import RunFolder
from toolkit.run.identity import snapshot
from toolkit.run.load import read_resolved


class Divergence(BaseModel):
    """Non-finite loss or gradient in the run of run.toml, and where it occurred."""

    model_config = ConfigDict(frozen=True)

    step: int
    """The update, or that after which an evaluation met it."""
    message: str
    corpora: dict[str, str]
    """`RunCorpora.hashes`."""

    def write(self, folder: RunFolder) -> None:
        """Write it to a run's folder."""
        atomic_write(folder.diverged_file, json.dumps(self.model_dump(), indent=2) + "\n")


def read_divergence(folder: RunFolder) -> Divergence | None:
    """Divergence of a run; None if it has not diverged, or has got past it since."""
    try:
        found = Divergence.model_validate_json(folder.diverged_file.read_bytes())
    except (OSError, ValidationError):
        return None
    return found if folder.newest_step() < found.step else None


def divergence_of(run: DeclaredRun, hashes: Hashes) -> Divergence | None:
    """Divergence recorded in the folder of `run`, if `run` would make the same steps up to it; else None."""
    if (found := read_divergence(run.folder)) is None:
        return None
    there = read_resolved(run.folder.settings_file)
    here = with_choices(run, snapshot(there.settings))
    corpora = hashes(here.settings)
    common = parting(Course(there, None if corpora is None else found.corpora), Course(here, corpora))
    return found if common.step >= found.step else None


@contextmanager
def divergence_kept(folder: RunFolder | None, corpora: Mapping[str, str]) -> Iterator[None]:
    """Record in `folder`, None on all ranks but one, a divergence that the body raises on all ranks."""
    try:
        yield
    except NonFiniteError as error:
        if folder is not None and error.step is not None:
            Divergence(step=error.step, message=str(error), corpora=dict(corpora)).write(folder)
        raise
