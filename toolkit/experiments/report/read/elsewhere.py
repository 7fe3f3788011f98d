"""Scores that other tools gave a report's models: MTEB's cache of results, and EuroEval's JSON lines."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple, TypeVar

from pydantic import AliasChoices, AliasPath, BaseModel, Field, ValidationError, field_validator

from toolkit.core.errors import SettingsError, UserError
from toolkit.core.settings import explain
from toolkit.core.text import first_few
from toolkit.experiments.grid.cells import Number, Score
from toolkit.experiments.grid.folder import GridFolder, ModelInfo
from toolkit.experiments.report.read.results import Results
from toolkit.experiments.report.read.tasks import ELSEWHERE, tasks_with_cells
from toolkit.tables import read_text

MTEB, EUROEVAL = ELSEWHERE
_DETAILS = ("eval_library", "additional_details")
_NO_SCORES = ("speed", "speed_short", "bits_per_character")
"""EuroEval metrics that are not in percent; for bits, lower is better."""
_Form = TypeVar("_Form", bound=BaseModel)


class _Given(NamedTuple):
    """A score as given in a file, and its place there; `data` describes what it is averaged over."""

    place: str
    kind: str
    model: str
    dataset: str
    metric: str
    score: float
    data: str = ""


class _Subset(BaseModel):
    hf_subset: str = ""
    main_score: Number


class _TaskResult(BaseModel):
    """`<org__model>/<revision>/<Task>.json` of MTEB: by split, a score for each subset (language) of the task."""

    task_name: str
    dataset_revision: str | None = None
    scores: dict[str, Annotated[list[_Subset], Field(min_length=1)]] = Field(min_length=1)

    def given(self, path: Path) -> _Given:
        """The mean over splits and subsets, which is MTEB's own score of a task."""
        each = [(split, one) for split, subsets in self.scores.items() for one in subsets]
        found = [(f"{split} {one.hf_subset}".rstrip(), one.main_score) for split, one in each]
        names, scores = zip(*sorted(found), strict=True)
        data = f"{', '.join(names)}; {f'revision {self.dataset_revision}' if self.dataset_revision else 'no revision'}"
        return _Given(str(path), MTEB, path.parents[1].name, self.task_name, "main_score", fmean(scores), data)


class _Metric(BaseModel):
    evaluation_name: str
    score: float = Field(validation_alias=AliasPath("score_details", "score"))


class _Benchmark(BaseModel):
    """A line of EuroEval's `euroeval_benchmark_results.jsonl`; since version 17 in the Every Eval Ever format."""

    model: str = Field(validation_alias=AliasChoices("model", AliasPath("model_info", "id")))
    dataset: str = Field(validation_alias=AliasChoices("dataset", AliasPath(*_DETAILS, "dataset")))
    validation_split: bool | None = Field(
        default=None, validation_alias=AliasChoices("validation_split", AliasPath(*_DETAILS, "validation_split"))
    )
    results: dict[str, float] | list[_Metric] = Field(
        validation_alias=AliasChoices(AliasPath("results", "total"), "evaluation_results")
    )

    @field_validator("results")
    @classmethod
    def _main(cls, found: dict[str, float] | list[_Metric]) -> dict[str, float]:
        """The main metric, which EuroEval lists first, with its mean in percent."""
        scores = found.items() if isinstance(found, dict) else [(one.evaluation_name, one.score) for one in found]
        name, score = next((one for one in scores if one[0].startswith("test_")), ("", nan))
        if not isfinite(score):
            raise ValueError("expected a finite number as the first score named test_*")
        return {name: score}

    def given(self, place: str) -> _Given:
        """The mean of the main metric."""
        assert isinstance(self.results, dict)
        [(name, score)] = self.results.items()
        dataset = f"{self.dataset} (validation)" if self.validation_split else self.dataset
        return _Given(place, EUROEVAL, self.model, dataset, name.removeprefix("test_"), score / 100)


def with_scores_made_elsewhere(results: Results | None, folder: Path, runs: Sequence[Path]) -> tuple[Results, str]:
    """The results with the scores below a folder added, and a sentence on models there that the report lacks.

    A score is assigned to the grid's model, or the run, whose name is the end of the other tool's name for it: MTEB and
    EuroEval name a model after its path or its repository. Each is one observation, like one fine-tuning seed.

    Raises:
        UserError: a file is damaged, two scores have the same model and data set, models were scored on different data
            or by different metrics, or no score belongs to a model.
    """
    results = results or Results({}, (), {}, (), (), {})
    known, of_runs = {model.name for model in results.models}, [run.resolve().name for run in runs]
    # A score under a name that two runs share could belong to either.
    alone = ((name, run) for name, run in zip(of_runs, runs, strict=True) if of_runs.count(name) == 1)
    models = [*results.models, *(ModelInfo(name, str(run)) for name, run in alone if name not in known)]
    names, kinds = [model.name for model in models], {task.name: task.kind for task in results.tasks}
    found, unknown, where = list[Score](), dict[str, None](), dict[tuple[str, str], _Given]()
    firsts = dict[str, _Given]()
    for one in (one for one in _scores(folder) if one.metric not in _NO_SCORES):
        model = _owner(one.model, names)
        if model is None:
            unknown[one.model] = None
            continue
        task = one.dataset if kinds.setdefault(one.dataset, one.kind) == one.kind else f"{one.dataset} ({one.kind})"
        if (before := where.setdefault((model, task), one)) is not one:
            raise UserError(
                f"{before.place} and {one.place} both score the model {model!r} on {task!r}. Remove one of them."
            )
        if (first := firsts.setdefault(task, one)).data != one.data:
            raise UserError(
                f"{one.place} is the mean over other data of {task!r} ({one.data}) than {first.place} "
                f"({first.data}). Evaluate both on the same, or remove one of them."
            )
        score = {one.metric: one.score}
        found.append(
            Score(model=model, task=task, kind=one.kind, seed=0, learning_rate=0.0, metric=one.metric, test=score)
        )
    if not found:
        what = f"has scores of {first_few([*unknown])} only" if unknown else "has neither MTEB's results nor EuroEval's"
        what = what if folder.is_dir() else "is not a folder"
        raise SettingsError(
            f"--scores {folder} {what}; expected <org__model>/<revision>/<Task>.json or .jsonl files that score a "
            f"model of the report: {first_few(names)}."
        )
    left_out = f"scores in {folder} left out, as no model of the report has the name: {first_few([*unknown])}"
    scored, grid = {score.model for score in found}, GridFolder(folder)
    return replace(
        results,
        grids={**results.grids, **dict.fromkeys(where, grid)},
        cells=(*results.cells, *sorted(found, key=lambda score: score.cell)),
        rates={**results.rates, **dict.fromkeys(where, 0.0)},
        models=tuple(model for model in models if model.name in known | scored),
        tasks=(*results.tasks, *tasks_with_cells(firsts, found, lambda score: grid.place(score.cell))),
    ), left_out if unknown else ""


def _owner(given: str, names: Iterable[str]) -> str | None:
    """The longest model name that equals the given name, or its last parts as a path; None if there is none."""
    spelled = f"__{_as_folder(given).rstrip('_')}"
    return max((name for name in names if spelled.endswith(f"__{_as_folder(name)}")), key=len, default=None)


def _as_folder(name: str) -> str:
    """A name or path as MTEB writes it in folder names."""
    return name.replace("/", "__").replace(" ", "_")


def _scores(folder: Path) -> Iterator[_Given]:
    cache = folder / "results" if (folder / "results").is_dir() else folder
    for path in sorted(cache.glob("*/*/*.json")):
        if path.name != "model_meta.json":
            yield _read(
                read_text(path, what_to_give="Leave it out."), _TaskResult, f"{path} is not a result of MTEB"
            ).given(path)
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(read_text(path, what_to_give="Leave it out.").split("\n"), start=1):
            if line.strip():
                place = f"{path}: row {number}"
                yield _read(line, _Benchmark, f"{place} is not a result of EuroEval").given(place)


def _read(text: str, form: type[_Form], what: str) -> _Form:
    try:
        return form.model_validate(json.loads(text))
    except ValidationError as error:
        found = explain(error, form).splitlines()[0]
    except ValueError as error:
        found = f"{error}."
    raise UserError(f"{what}: {found} Remove it, or evaluate again.")
