"""Scores that MTEB and EuroEval made: whose they are, their means and intervals, and files that are no results."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.finished_grids import row, write_finished_grid
from toolkit.core.errors import SettingsError, UserError
from toolkit.experiments.report import write_report
from toolkit.experiments.report.read.elsewhere import with_scores_made_elsewhere

MTEB_SCORES = {
    "a-seed-0": 0.40,
    "a-seed-1": 0.42,
    "a-seed-2": 0.47,
    "b-seed-0": 0.50,
    "b-seed-1": 0.51,
    "b-seed-2": 0.55,
}
LABELS = {name: {"clm_share": 0.5 * (name[0] == "b"), "seed": int(name[-1])} for name in MTEB_SCORES}


def _mteb(
    folder: Path, model: str, score: float, *, task: str = "SciFact", revision: str = "no_revision_available"
) -> Path:
    """A task's result of two languages, whose mean is the score."""
    place = folder / model / revision
    place.mkdir(parents=True, exist_ok=True)
    (place / "model_meta.json").write_text('{"name": "a model"}')
    scores = [
        {"hf_subset": name, "languages": [name], "main_score": score + x} for name, x in (("en", 0.1), ("de", -0.1))
    ]
    given = {"task_name": task, "dataset_revision": "x", "mteb_version": "2.1.0", "scores": {"test": scores}}
    (place / f"{task}.json").write_text(json.dumps(given))
    return place / f"{task}.json"


def _euroeval(model: str, **more: Any) -> str:
    results = {"raw": [{"test_mcc": 0.6}], "total": {"test_mcc": 60.0, "test_mcc_se": 1.0, "test_macro_f1": 70.0}}
    return json.dumps({"dataset": "angry-tweets", "task": "sentiment", "model": model, "results": results, **more})


def _every_eval_ever(model: str, metric: str, score: float, *, validation: str | None = "false") -> str:
    """A line of EuroEval since version 17."""
    names = (metric, score), ("test_macro_f1", 70.0)
    found = [{"evaluation_name": name, "score_details": {"score": value}} for name, value in names]
    details = {"dataset": "angry-tweets", "validation_split": validation, "raw_results": "a\u2028b"}
    line = {
        "schema_version": "0.2.1",
        "model_info": {"name": model, "id": model, "additional_details": {}},
        "eval_library": {"name": "euroeval", "version": "18.0.0", "additional_details": details},
        "evaluation_results": found,
    }
    return json.dumps(line, ensure_ascii=False)


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return write_finished_grid(tmp_path / "grid", [row(name, "sst2", 0, 0.9) for name in LABELS], labels=LABELS)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for name, score in MTEB_SCORES.items():
        _mteb(tmp_path / "cache/results", f"exports__{name}", score)
    return tmp_path / "cache"


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_means_intervals_tests_and_figures_are_those_of_our_own_scores(grid: Path, cache: Path, tmp_path: Path) -> None:
    out = write_report([grid], scores=cache, output=tmp_path / "out")
    a, b = _table(out / "tables/configurations-MTEB.csv")
    column = "SciFact (main_score)"
    # 0.40, 0.42, 0.47: a standard deviation of sqrt(0.0026 / 2), over sqrt(3), times t(0.975, 2) = 4.302653.
    assert (a[column], a[f"{column} low"], a[f"{column} high"]) == ("43.00", "34.04", "51.96")
    assert b[column] == "52.00"
    tests = {line["data set"]: line for line in _table(out / "tables/configurations-tests.csv")}
    # Seed by seed -0.10, -0.09, -0.08.
    found = tests["SciFact"]
    assert (found["pairs"], found["difference"], found["low"], found["high"]) == ("3", "-9.00", "-11.48", "-6.52")
    assert float(found["p"]) == pytest.approx(0.00409, abs=1e-5)
    assert "MTEB" in (out / "figures/configurations-by-clm-share.svg").read_text()
    long = [line for line in _table(out / "tables/long.csv") if line["kind"] == "MTEB"]
    assert {line["model"]: float(line["score"]) for line in long} == pytest.approx(MTEB_SCORES)
    assert {(line["clm_share"], line["pretraining_seed"]) for line in long} >= {("0.0", "2"), ("0.5", "0")}
    assert "SciFact" not in (out / "tables/learning-rates.csv").read_text()
    assert "6 fine-tuning runs, 6 scores made elsewhere" in (out / "report.html").read_text()


def test_lines_of_euroeval(grid: Path, tmp_path: Path) -> None:
    """In percent; the first metric is the main one. A data set of the validation split has a name of its own."""
    lines = ["", _euroeval("models/a-seed-0"), _euroeval("org/other"), _euroeval("b-seed-1", validation_split=True)]
    (tmp_path / "euroeval_benchmark_results.jsonl").write_text("\n".join(lines))
    out = write_report([grid], scores=tmp_path, output=tmp_path / "out")
    found = {(line["model"], line["task"], line["metric"], line["mean"]) for line in _table(out / "tables/scores.csv")}
    assert ("a-seed-0", "angry-tweets", "mcc", "0.6") in found
    assert ("b-seed-1", "angry-tweets (validation)", "mcc", "0.6") in found
    assert "no model of the report has the name: org/other." in (out / "report.html").read_text()


def test_lines_of_euroeval_since_version_17(grid: Path, tmp_path: Path) -> None:
    """Both forms may be in one file. Tokens a second and bits per character are no scores."""
    lines = [
        _euroeval("a-seed-0"),
        _every_eval_ever("models/a-seed-1", "test_mcc", 40.0),
        _every_eval_ever("a-seed-1", "test_mcc", 30.0, validation="true"),
        _every_eval_ever("a-seed-2", "test_speed", 12_345.0),
        _every_eval_ever("b-seed-0", "test_bits_per_character", 1.25, validation=None),
    ]
    (tmp_path / "euroeval_benchmark_results.jsonl").write_text("\n".join(lines), encoding="utf-8")
    out = write_report([grid], scores=tmp_path, output=tmp_path / "out")
    found = [line for line in _table(out / "tables/scores.csv") if line["kind"] == "EuroEval"]
    assert {(line["model"], line["task"], line["metric"], line["mean"]) for line in found} == {
        ("a-seed-0", "angry-tweets", "mcc", "0.6"),
        ("a-seed-1", "angry-tweets", "mcc", "0.4"),
        ("a-seed-1", "angry-tweets (validation)", "mcc", "0.3"),
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (_euroeval("a-seed-1", results={"total": {"test_macro_f1": 50.0}}), "'angry-tweets' is scored in 2 ways"),
        (
            _euroeval("a-seed-1", results={"total": {"test_mcc": float("nan"), "test_f1": 1.0}}),
            "row 2 .*a finite number",
        ),
        (_every_eval_ever("a-seed-0", "test_mcc", 1.0), r"row 1 and .*jsonl: row 2 both score .* Remove one"),
        ('{"evaluation_results": [{}]}', "row 2 is not a result of EuroEval: model"),
    ],
)
def test_scores_that_do_not_compare(grid: Path, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "euroeval_benchmark_results.jsonl").write_text(f"{_euroeval('a-seed-0')}\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        write_report([grid], scores=tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [('"de"', '"fr"', "test en, test fr; revision x"), ('"x"', '"y"', "test de, test en; revision y")],
)
def test_models_were_scored_on_the_same_data(grid: Path, cache: Path, old: str, new: str, found: str) -> None:
    place = cache / "results/exports__b-seed-2/no_revision_available/SciFact.json"
    place.write_text(place.read_text().replace(old, new))
    told = rf"b-seed-2.* other data of 'SciFact' \({found}\) than .* \(test de, test en; revision x\)"
    with pytest.raises(UserError, match=told):
        write_report([grid], scores=cache)


def test_a_name_of_two_runs_is_nobodys(cache: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "here/a-seed-0", tmp_path / "there/a-seed-0", tmp_path / "here/b-seed-0"]
    _, unmatched = with_scores_made_elsewhere(None, cache, runs[:1])
    assert "a-seed-0" not in unmatched
    results, unmatched = with_scores_made_elsewhere(None, cache, runs)
    assert "exports__a-seed-0" in unmatched
    assert [score.model for score in results.cells] == [model.name for model in results.models] == ["b-seed-0"]


def test_whose_a_score_is(tmp_path: Path) -> None:
    """The whole last parts of a path count, and the longest name; a data set of the grid keeps its name."""
    grid = write_finished_grid(tmp_path / "grid", [row(name, "SciFact", 0, 0.9) for name in ("a", "x a", "org/a")])
    for number, given in enumerate(("__root__exports__a", "deep__x_a", "org__a", "exports__ba")):
        _mteb(tmp_path / "cache", given, (number + 1) / 8)
    out = write_report([grid], scores=tmp_path / "cache", output=tmp_path / "out")
    lines = [line for line in _table(out / "tables/scores.csv") if line["kind"] == "MTEB"]
    assert {line["task"] for line in lines} == {"SciFact (MTEB)"}
    assert {line["model"]: float(line["mean"]) for line in lines} == {"a": 0.125, "x a": 0.25, "org/a": 0.375}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", r"SciFact\.json is not a result of MTEB: .*Remove it, or evaluate again\."),
        ('{"task_name": "t", "test": {}}', r"not a result of MTEB: scores is missing"),
        ('{"task_name": "t", "scores": {"test": [{"main_score": NaN}]}}', r"main_score.* a finite number"),
        ('{"task_name": "t", "scores": {"test": []}}', r"scores\.test"),
    ],
)
def test_a_file_that_is_no_result(grid: Path, cache: Path, text: str, message: str) -> None:
    _mteb(cache / "results", "exports__a-seed-0", 0.5).write_text(text)
    with pytest.raises(UserError, match=message):
        write_report([grid], scores=cache)


def test_what_does_not_say_whose_score_counts(grid: Path, cache: Path, tmp_path: Path) -> None:
    _mteb(cache / "results", "exports__a-seed-0", 0.5, revision="other")
    with pytest.raises(UserError, match="both score the model 'a-seed-0' on 'SciFact'"):
        write_report([grid], scores=cache)
    (tmp_path / "x.jsonl").write_text('{"dataset": "x", "model": "a-seed-0", "results": {"total": {"speed": 1}}}')
    with pytest.raises(UserError, match=r"x\.jsonl: row 1 is not a result of EuroEval: .*test_"):
        write_report([grid], scores=tmp_path)
    (tmp_path / "x.jsonl").write_text(_euroeval("other"))
    with pytest.raises(SettingsError, match=r"has scores of other only; expected .* of the report: a-seed-0"):
        write_report([grid], scores=tmp_path)
