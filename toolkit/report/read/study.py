"""The models of a study, from its study.json, and the hours that their runs have taken."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from toolkit.core.errors import UserError
from toolkit.experiments.study.folder import StudyFolder
from toolkit.run.folder import RunFolder
from toolkit.run.metrics import read_lines


@dataclass(frozen=True)
class Segment:
    """Steps of one objective, at the peak of the learning rate or behind it."""

    objective: str
    start: int
    stop: int
    decays: bool


@dataclass(frozen=True)
class StudyModel:
    """A model, and where it has its first steps from."""

    name: str
    total_steps: int
    own_steps: int
    tokens: int
    giver: str | None
    fork: int
    segments: tuple[Segment, ...]
    """Of its own steps."""
    kept: tuple[int, ...]
    """Steps whose checkpoints stay."""
    hours: float | None
    """Of the own steps that its run has made; None where it does not tell."""


def is_study(folder: Path) -> bool:
    """True where `toolkit study` has written its plan."""
    return StudyFolder(folder).summary_file.is_file()


def read_study(folder: Path) -> tuple[StudyModel, ...]:
    """The models of a study, each behind the one that it begins from.

    Raises:
        UserError: its plan is damaged, or of an earlier version.
    """
    study = StudyFolder(folder)
    try:
        models = json.loads(study.summary_file.read_text(encoding="utf-8"))["models"]
        return tuple(_model(each, RunFolder(study.runs / each["name"])) for each in models)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"could not read {study.summary_file}: {error!r}. The study's own command writes it again: toolkit study "
            "STUDY.toml."
        ) from error


def _model(given: Mapping[str, Any], run: RunFolder) -> StudyModel:
    return StudyModel(
        name=given["name"],
        total_steps=given["total_steps"],
        own_steps=given["own_steps"],
        tokens=given["tokens"],
        giver=given["from"],
        fork=given["step"],
        segments=tuple(Segment(**each) for each in given["segments"]),
        kept=tuple(given["kept"]),
        hours=_hours(run, given["step"]),
    )


def _hours(run: RunFolder, first: int) -> float | None:
    lines = [line for line in read_lines(run) if "loss" in line and line.get("tokens_per_second")]
    if len(lines) < 2:
        return None
    taken = sum((line["tokens"] - before["tokens"]) / line["tokens_per_second"] for before, line in pairwise(lines))
    # Those before its first line took as long as the others.
    made = lines[-1]["step"] - lines[0]["step"]
    return float(taken / made * (lines[-1]["step"] - first) / 3600)
