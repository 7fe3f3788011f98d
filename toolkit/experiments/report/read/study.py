"""Models of a study, from its study.json, and the hours that their runs have taken."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolkit.core.errors import UserError
from toolkit.core.settings import explain
from toolkit.experiments.study.folder import StudyFolder
from toolkit.run.divergence import read_divergence
from toolkit.run.folder import RunFolder
from toolkit.run.metrics import read_lines


@dataclass(frozen=True)
class StudySegment:
    """Steps of one objective, at the peak of the learning rate or after it."""

    objective: str
    start: int
    stop: int
    decays: bool


class StudyModel(BaseModel):
    """A model, and the checkpoint that it starts from."""

    model_config = ConfigDict(frozen=True)

    name: str
    total_steps: int
    own_steps: int
    tokens: int
    giver: str | None = Field(alias="from")
    fork: int = Field(alias="step")
    segments: tuple[StudySegment, ...]
    """Segments of the run's own steps."""
    kept: tuple[int, ...]
    """Steps whose checkpoints stay."""
    hours: float | None = None
    """Hours of its own steps so far; None if unknown."""
    diverged: int | None = None
    """The step at which it diverged."""

    @property
    def shown(self) -> str:
        """The model's name, marked if it diverged."""
        return self.name if self.diverged is None else f"{self.name} (diverged at step {self.diverged:,})"


def is_study(folder: Path) -> bool:
    """True if `toolkit study` has written its plan there."""
    return StudyFolder(folder).summary_file.is_file()


def read_study(folder: Path) -> tuple[StudyModel, ...]:
    """The models of a study, each after the one that it starts from."""
    study = StudyFolder(folder)
    try:
        given = json.loads(study.summary_file.read_text(encoding="utf-8"))["models"]
        models = [StudyModel.model_validate(each) for each in given]
        return tuple(model.model_copy(update=_found(study, model)) for model in models)
    except (OSError, ValueError, LookupError, TypeError) as error:
        found = explain(error, StudyModel) if isinstance(error, ValidationError) else f"{error!r}."
        raise UserError(
            f"could not read {study.summary_file}: {found.splitlines()[0]} The study's own command writes it again: "
            "toolkit study STUDY.toml."
        ) from error


def _found(study: StudyFolder, model: StudyModel) -> dict[str, float | int | None]:
    """Hours and divergence, from the model's run."""
    run = RunFolder(study.runs / model.name)
    divergence = read_divergence(run)
    return {"hours": _hours(run, model), "diverged": None if divergence is None else divergence.step}


def _hours(run: RunFolder, model: StudyModel) -> float | None:
    lines = [line for line in read_lines(run) if "loss" in line and line.get("tokens_per_second")]
    if len(lines) < 2:
        return None
    taken = sum((line["tokens"] - before["tokens"]) / line["tokens_per_second"] for before, line in pairwise(lines))
    # Steps before the first line are assumed to be as fast as the others.
    made = lines[-1]["step"] - lines[0]["step"]
    return float(taken / made * (lines[-1]["step"] - model.fork) / 3600)
