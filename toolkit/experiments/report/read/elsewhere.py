"""Scores that other tools made of models of a report: MTEB's cache of results, and EuroEval's JSON lines."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator

from toolkit.core.errors import SettingsError, UserError
from toolkit.core.settings import explain
from toolkit.core.text import first_few
from toolkit.experiments.grid.cells import Number, Score
from toolkit.experiments.grid.folder import GridFolder, ModelInfo
from toolkit.experiments.report.read.results import Results
from toolkit.experiments.report.read.tasks import ELSEWHERE, TaskInfo

MTEB, EUROEVAL = ELSEWHERE
_Form = TypeVar("_Form", bound=BaseModel)


class _Subset(BaseModel):
    main_score: Number


class _TaskResult(BaseModel):
    """`<org__model>/<revision>/<Task>.json` of MTEB: by split, a score for each subset (language) of the task."""

    task_name: str
    scores: dict[str, Annotated[list[_Subset], Field(min_length=1)]] = Field(min_length=1)

    def named(self, path: Path) -> tuple[str, str, str, float]:
        """Model, data set, metric, and the mean over splits and subsets, which is MTEB's own score of a task."""
        mean = fmean(subset.main_score for subsets in self.scores.values() for subset in subsets)
        return path.parents[1].name, self.task_name, "main_score", mean


class _Totals(BaseModel):
    total: dict[str, float]

    @field_validator("total")
    @classmethod
    def _tested(cls, total: dict[str, float]) -> dict[str, float]:
        tested = {name: score for name, score in total.items() if name.startswith("test_") and isfinite(score)}
        assert tested, "expected a score named test_*"
        return tested


class _Benchmark(BaseModel):
    """A line of EuroEval's `euroeval_benchmark_results.jsonl`."""

    model: str
    dataset: str
    results: _Totals
    validation_split: bool | None = None

    def named(self, path: Path) -> tuple[str, str, str, float]:
        """Model, data set, the main metric, which EuroEval names first, and its mean, given in percent."""
        name, score = next(iter(self.results.total.items()))
        dataset = f"{self.dataset} (validation)" if self.validation_split else self.dataset
        return self.model, dataset, name.removeprefix("test_"), score / 100


def with_scores_made_elsewhere(results: Results | None, folder: Path, runs: Sequence[Path]) -> tuple[Results, str]:
    """The results with the scores below a folder, and a sentence on models there that the report does not have.

    A score belongs to the model of a grid, or the run, whose name ends the name that the other tool has: MTEB and
    EuroEval name a model after its path or its repository. Each is one observation, as of one fine-tuning seed.

    Raises:
        UserError: a file is damaged, two files score one model on one data set, or no score belongs to a model.
    """
    results = results or Results({}, (), {}, (), (), {})
    known = {model.name for model in results.models}
    models = [
        *results.models,
        *(ModelInfo(run.resolve().name, str(run)) for run in runs if run.resolve().name not in known),
    ]
    names, kinds = [model.name for model in models], {task.name: task.kind for task in results.tasks}
    found, unknown, where = list[Score](), dict[str, None](), dict[tuple[str, str], Path]()
    for path, kind, (given, dataset, metric, score) in _scores(folder):
        model = _owner(given, names)
        if model is None:
            unknown[given] = None
            continue
        task = dataset if kinds.setdefault(dataset, kind) == kind else f"{dataset} ({kind})"
        if (model, task) in where:
            raise UserError(
                f"{where[model, task]} and {path} both score the model {model!r} on {dataset!r}. Remove one of them."
            )
        where[model, task] = path
        found.append(
            Score(model=model, task=task, kind=kind, seed=0, learning_rate=0.0, metric=metric, test={metric: score})
        )
    if not found:
        what = f"scores of {first_few([*unknown])} only" if unknown else "neither MTEB's results nor EuroEval's"
        raise SettingsError(
            f"--scores {folder} has {what}; expected <org__model>/<revision>/<Task>.json or .jsonl files that score a "
            f"model of the report: {first_few(names)}."
        )
    left_out = f"scores in {folder} left out, as no model of the report has the name: {first_few([*unknown])}"
    scored = {score.model for score in found}
    return replace(
        results,
        grids={**results.grids, **dict.fromkeys(where, GridFolder(folder))},
        cells=(*results.cells, *sorted(found, key=lambda score: score.cell)),
        rates={**results.rates, **dict.fromkeys(where, 0.0)},
        models=tuple(model for model in models if model.name in known | scored),
        tasks=(*results.tasks, *dict.fromkeys(TaskInfo(one.task, one.kind, one.metric) for one in found)),
    ), left_out if unknown else ""


def _owner(given: str, names: Iterable[str]) -> str | None:
    """The model whose name is the given one, or ends it as the last part of a path; the longest of several."""
    spelled = f"__{_as_folder(given).rstrip('_')}"
    return max((name for name in names if spelled.endswith(f"__{_as_folder(name)}")), key=len, default=None)


def _as_folder(name: str) -> str:
    """A name or path as MTEB writes it for a folder."""
    return name.replace("/", "__").replace(" ", "_")


def _scores(folder: Path) -> Iterator[tuple[Path, str, tuple[str, str, str, float]]]:
    cache = folder / "results" if (folder / "results").is_dir() else folder
    for path in sorted(cache.glob("*/*/*.json")):
        if path.name != "model_meta.json":
            yield path, MTEB, _read(_text(path), _TaskResult, f"{path} is not a result of MTEB").named(path)
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(_text(path).splitlines(), start=1):
            if line.strip():
                what = f"{path}: row {number} is not a result of EuroEval"
                yield path, EUROEVAL, _read(line, _Benchmark, what).named(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"could not read {path}: {error}. Make it readable, or leave it out.") from error


def _read(text: str, form: type[_Form], what: str) -> _Form:
    try:
        return form.model_validate(json.loads(text))
    except ValidationError as error:
        found = explain(error, form).splitlines()[0]
    except ValueError as error:
        found = f"{error}."
    raise UserError(f"{what}: {found} Remove it, or evaluate again.")
