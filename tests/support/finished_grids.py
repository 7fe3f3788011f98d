"""Folders of finished grids, written by hand: results.jsonl, selected.json and grid.toml, as `toolkit grid` does it."""

import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

METRICS = {"sc": "accuracy", "tc": "f1", "qa": "f1", "ir": "ndcg@10"}


def row(
    model: str,
    task: str,
    seed: int,
    score: float,
    *,
    kind: str = "sc",
    rate: float = 1e-4,
    validation: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A line of results.jsonl; the validation score is the test score if not given. `more` are further keys."""
    metric = METRICS[kind]
    return {
        "model": model,
        "task": task,
        "kind": kind,
        "seed": seed,
        "learning_rate": rate,
        "metric": metric,
        "validation": {metric: score if validation is None else validation},
        "test": {metric: score},
        **more,
    }


def write_finished_grid(
    folder: Path,
    rows: Iterable[Mapping[str, Any]],
    *,
    labels: Mapping[str, Mapping[str, Any]] | None = None,
    paths: Mapping[str, str] | None = None,
    report: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A grid's folder with these results; its models have these labels and paths, its file these tables."""
    rows, labels, paths = list(rows), labels or {}, paths or {}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rows))
    (folder / "selected.json").write_text(json.dumps(select(rows)))
    models = dict.fromkeys([*labels, *(entry["model"] for entry in rows)])
    tasks = {entry["task"]: entry["kind"] for entry in rows}
    declared = {
        "grid": {"dir": str(folder), **settings},
        "report": report or {},
        "model": [
            {
                "name": name,
                "path": (paths or {}).get(name, f"nowhere/{name}"),
                "labels": dict((labels or {}).get(name, {})),
            }
            for name in models
        ],
        "task": [{"name": name, "kind": kind, "train": "a", "test": "b"} for name, kind in tasks.items()],
    }
    (folder / "grid.toml").write_text(tomli_w.dumps(declared))
    return folder


def select(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """selected.json: for each model and task the rate with the best mean validation score."""
    groups: dict[tuple[str, str], dict[float, list[Mapping[str, Any]]]] = {}
    for entry in rows:
        groups.setdefault((entry["model"], entry["task"]), {}).setdefault(entry["learning_rate"], []).append(entry)
    selected: dict[str, Any] = {}
    for (model, task), rates in groups.items():
        rate = max(
            sorted(rates), key=lambda rate: statistics.fmean(_main(entry, "validation") for entry in rates[rate])
        )
        test = [_main(entry, "test") for entry in rates[rate]]
        selected.setdefault(model, {})[task] = {
            "learning_rate": rate,
            "metric": rates[rate][0]["metric"],
            "test_mean": statistics.fmean(test),
            "test_std": statistics.stdev(test) if len(test) > 1 else None,
            "seeds": [entry["seed"] for entry in rates[rate]],
        }
    return selected


def _main(entry: Mapping[str, Any], split: str) -> float:
    score: float = entry[split][entry["metric"]]
    return score
