"""Cells of a grid and their outcomes.

A cell has finished if it has a result, or if its training is known to diverge: a cell is a function of its
declaration, so it would diverge again.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from toolkit.core.settings import expectation, validated
from toolkit.core.text import json_kind
from toolkit.experiments.grid.declaration import Grid, TaskEntry
from toolkit.finetuning.settings import FinetuningSettings, Split

Number = Annotated[float, Field(allow_inf_nan=False)]


class Cell(NamedTuple):
    """One fine-tuning run; results are sorted by these fields. At rate 0 nothing is trained."""

    model: str
    task: str
    kind: str
    seed: int
    learning_rate: float

    @property
    def group(self) -> tuple[str, str]:
        """Model and task; a worker keeps them loaded from one cell to the next."""
        return self.model, self.task

    @property
    def path(self) -> str:
        """Path of the cell's folder below `cells/`."""
        return f"{self.model}/{self.task}/lr-{self.learning_rate!r}/seed-{self.seed}"

    def __str__(self) -> str:
        trained = f" lr {self.learning_rate!r} seed {self.seed}" if self.learning_rate else ""
        return f"{self.model} {self.task}{trained}"


def grid_cells(grid: Grid) -> list[Cell]:
    """All cells in the order in which a single worker runs them."""
    return [
        Cell(model.name, task.name, task.kind, seed, float(rate))
        for model in grid.model
        for task in grid.task
        for rate in grid.rates(task)
        for seed in grid.seeds(task)
    ]


def grid_counts(grid: Grid) -> dict[str, int]:
    """Counts of models, tasks, cells and trainings; the models need not exist yet, and no file is read.

    Tasks that train identically share one training per model, rate and seed, as `GridPlan.trainings` finds by hashes.
    """
    num_models = sum(len(model.chosen) or 1 for model in grid.model)
    num_cells, num_trainings, by_data = 0, 0, dict[str, list[TaskEntry]]()
    for task in grid.task:
        num_cells += len(_rates_and_seeds(grid, task))
        if task.is_trained:
            by_data.setdefault(_training_data(grid, task), []).append(task)
    for tasks in by_data.values():
        trained = dict[str, set[tuple[float, int]]]()
        # A kind's settings load torch, which takes seconds: done only if the tasks' options or paper settings differ.
        is_plain = (
            len({json.dumps([grid.options(task), list(task.options), _paper_settings(task)]) for task in tasks}) == 1
        )
        for task in tasks:
            settings = "" if is_plain else task_settings(task, grid.options(task)).model_dump_json()
            trained.setdefault(settings, set()).update(_rates_and_seeds(grid, task))
        num_trainings += sum(map(len, trained.values()))
    return {
        "models": num_models,
        "tasks": len(grid.task),
        "cells": num_models * num_cells,
        "trainings": num_models * num_trainings,
    }


def _paper_settings(task: TaskEntry) -> Mapping[str, Any]:
    from toolkit.finetuning.named.datasets import named_dataset

    return {} if task.dataset is None else dict(named_dataset(task.dataset, task=task.kind).paper_settings)


def _rates_and_seeds(grid: Grid, task: TaskEntry) -> set[tuple[float, int]]:
    return {(rate, seed) for rate in grid.rates(task) for seed in grid.seeds(task)}


def _training_data(grid: Grid, task: TaskEntry) -> str:
    """The kind and the training data, by name instead of by hash as in `ResolvedTask.training_data`."""
    from toolkit.finetuning.named.datasets import named_dataset

    named = None if task.dataset is None else named_dataset(task.dataset, task=task.kind)
    protocol = grid.options(task).get("protocol", "standard")
    if named is not None:
        named.check_given([*map(Split, task.files)], protocol, needed=[Split.TRAIN])
    if named is None or task.train is not None:
        return json.dumps([task.kind, os.path.normpath(task.train or ""), task.validation is None])
    return json.dumps([task.kind, named.splits(protocol)[Split.TRAIN].name])


def task_settings(task: TaskEntry, options: Mapping[str, Any]) -> FinetuningSettings:
    """Settings of a task from options of its kind, with the paper's settings for a data set given by name."""
    from toolkit.finetuning import get_task
    from toolkit.finetuning.named.datasets import named_dataset

    settings = validated(get_task(task.kind).Settings, options, origin=f"[[task]] {task.name}")
    if task.dataset is None:
        return settings
    return named_dataset(task.dataset, task=task.kind).settings(settings, shared=options.keys() - task.options.keys())


class Score(BaseModel):
    """Scores of a finished cell: a line of `results.jsonl`, and the part of `result.json` that a grid reads."""

    # `result.json` has more keys, and so may a later version.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    model: str
    task: str
    kind: str
    seed: int
    learning_rate: Number = Field(ge=0)
    """0 where nothing is trained."""
    metric: str
    """The main one."""
    validation: dict[str, Number] | None = None
    """Scores on the validation split by metric; None without one."""
    test: dict[str, Number]
    """Scores on the test split."""
    majority: Number | None = None
    """The main metric of the best answer that reads no text; None where there is none."""
    made_by: dict[str, str] | None = None
    """Versions, device and compute dtype; None where an older version has written the result."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for split, scores in (("test", self.test), ("validation", self.validation)):
            if scores is not None and self.metric not in scores:
                raise ValueError(f"has no {split} score of its metric {self.metric!r}")
        return self

    @classmethod
    def read(cls, record: object) -> Self:
        """Parse a record; raise ValueError that says what is wrong with it, such as "has no 'seed'"."""
        if not isinstance(record, dict):
            raise ValueError(f"is {json_kind(record)}, expected an object")
        try:
            return cls.model_validate(record)
        except ValidationError as error:
            raise ValueError(_complaint(error.errors(include_url=False)[0])) from None

    @property
    def cell(self) -> Cell:
        """The cell that has these scores."""
        return Cell(self.model, self.task, self.kind, self.seed, self.learning_rate)

    @property
    def main(self) -> float:
        """The main metric on the test split."""
        return self.test[self.metric]

    def line(self) -> str:
        """The line of `results.jsonl`."""
        return json.dumps(self.model_dump(), ensure_ascii=False) + "\n"


def _complaint(finding: Any) -> str:
    name, kind = ".".join(map(str, finding["loc"])), finding["type"]
    if kind == "missing":
        return f"has no {name!r}"
    if kind == "value_error":
        return str(finding["ctx"]["error"])
    expected = expectation(finding)
    if finding["loc"][0] in ("validation", "test", "majority"):
        expected = f"expected {'an object of scores' if kind == 'dict_type' else 'a finite number'}"
    return f"has {name} = {json.dumps(finding['input'])}, {expected}"


@dataclass(frozen=True)
class Diverged:
    """A cell whose training ended in non-finite weights; `made_by` as in `Score`."""

    cell: Cell
    message: str
    made_by: Mapping[str, str] | None = None


Outcome = Score | Diverged
