"""Results as others read them: the `model-index` of a model card, and JSON in the layout of MTEB's results."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import toolkit
from toolkit.core.errors import UserError
from toolkit.experiments.grid.cells import Score
from toolkit.report.read.results import Results
from toolkit.report.read.tasks import TaskInfo

# Of the hub's list of tasks.
_TASK_TYPES = {
    "sc": "text-classification",
    "tc": "token-classification",
    "qa": "question-answering",
    "ir": "text-retrieval",
}
# MTEB names metrics with underscores: ndcg_at_10.
_MTEB_SIGNS = str.maketrans({"@": "_at_"})
_UNKNOWN_REVISION = "unknown"
# What MTEB calls a model whose revision it does not know; it looks for results in results/MODEL/REVISION/.
_MODEL_REVISION = "no_revision_available"
# ISO 639-3 for undetermined. Without any language MTEB leaves a score out of its means.
_LANGUAGES = ["und"]


def model_indexes(results: Results) -> dict[str, str]:
    """The YAML of each model by file name: `model-index` as it stands in a model card's head."""
    from huggingface_hub import ModelCardData

    files = distinct_file_names([model.name for model in results.models])
    texts: dict[str, str] = {}
    for model in results.models:
        by_task = [(task, results.chosen(model.name, task.name)) for task in results.tasks]
        found = [entry for task, cells in by_task if cells for entry in _evaluations(cells, task)]
        if found:
            card = ModelCardData(model_name=model.name, eval_results=found)
            texts[f"{files[model.name]}.yaml"] = card.to_yaml() + "\n"
    return texts


def mteb_results(results: Results) -> dict[str, str]:
    """Scores by path, as MTEB's cache of results holds them: the mean over seeds, and each seed's own.

    They are not MTEB's runs: `mteb_version` is null, and tasks are called what the grid calls them.
    """
    models = distinct_file_names([model.name for model in results.models])
    tasks = distinct_file_names([task.name for task in results.tasks])
    texts: dict[str, str] = {}
    for model in results.models:
        for task in results.tasks:
            cells = results.chosen(model.name, task.name)
            if cells:
                content = json.dumps(_mteb_result(cells, task), indent=2, ensure_ascii=False)
                texts[f"results/{models[model.name]}/{_MODEL_REVISION}/{tasks[task.name]}.json"] = content + "\n"
    return texts


def distinct_file_names(names: Sequence[str]) -> dict[str, str]:
    """Names of files for names of models or tasks: signs that a file system may not take become dashes."""
    found: dict[str, str] = {}
    for name in names:
        file = re.sub(r"[^\w.+-]", "-", name).lstrip(".-") or "unnamed"
        for other, taken in found.items():
            if taken.lower() == file.lower():
                raise UserError(f"the names {other!r} and {name!r} would share the file {file!r}. Rename one.")
        found[name] = file
    return found


def _evaluations(cells: Sequence[Score], task: TaskInfo) -> list[Any]:
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type=_TASK_TYPES.get(task.kind, task.kind),
            dataset_type=task.name,
            dataset_name=task.name,
            dataset_split="test",
            metric_type=metric,
            metric_value=score,
            metric_name=f"{metric}, mean of {len(cells)} seeds" if len(cells) > 1 else metric,
        )
        for metric, score in _means(cells).items()
    ]


def _mteb_result(cells: Sequence[Score], task: TaskInfo) -> dict[str, Any]:
    means = _means(cells)
    scores = {
        **_named(means, task),
        "scores_per_experiment": [{**_named(cell.test, task), "seed": cell.seed} for cell in cells],
        "hf_subset": "default",
        "languages": _LANGUAGES,
    }
    return {
        "dataset_revision": _UNKNOWN_REVISION,
        "task_name": task.name,
        "mteb_version": None,
        "toolkit_version": toolkit.__version__,
        "scores": {"test": [scores]},
        "evaluation_time": None,
        "kg_co2_emissions": None,
    }


def _named(scores: Mapping[str, float], task: TaskInfo) -> dict[str, float]:
    return {
        "main_score": scores[task.metric],
        **{metric.translate(_MTEB_SIGNS): score for metric, score in scores.items()},
    }


def _means(cells: Sequence[Score]) -> dict[str, float]:
    shared = [name for name in cells[0].test if all(name in cell.test for cell in cells)]
    shared.sort(key=lambda name: name != cells[0].metric)
    return {name: math.fsum(cell.test[name] for cell in cells) / len(cells) for name in shared}
