"""Which models are compared, and with how many others their p-values are corrected."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.finished_grids import row, write_finished_grid
from toolkit.experiments.report import write_report
from toolkit.experiments.report.compare.comparisons import comparison_table, difference_tables, pairs_of
from toolkit.experiments.report.compare.formats import markdown
from toolkit.experiments.report.compare.levels import Level, configuration_level, model_level
from toolkit.experiments.report.compare.score_tables import score_tables
from toolkit.experiments.report.compare.tables import MeanScore
from toolkit.experiments.report.read.results import read_results


def _level(folder: Path, labels: dict[str, dict[str, Any]], scores: dict[str, tuple[float, ...]]) -> Level:
    rows = [row(name, "sst2", seed, score) for name in labels for seed, score in enumerate(scores[name])]
    return model_level(read_results([write_finished_grid(folder, rows, labels=labels)]))


def _names(level: Level, baseline: str | None = None) -> dict[str, list[tuple[str, str]]]:
    pairs = pairs_of(level, baseline)
    return {varied: [(first.name, second.name) for first, second in members] for varied, members in pairs.items()}


@pytest.fixture
def level(tmp_path: Path) -> Level:
    """Two sizes and three shares: 15 pairs, of which 3 differ in the size alone and 6 in the share alone."""
    labels: dict[str, dict[str, Any]] = {
        f"{size}-{share}": {"size": size, "clm_share": share} for size in ("210m", "610m") for share in (0.0, 0.5, 1.0)
    }
    scores = {name: (0.5 + n / 10, 0.53 + n / 9) for n, name in enumerate(labels)}
    return _level(tmp_path, labels, scores)


def test_pairs_differ_in_one_label(level: Level) -> None:
    assert _names(level) == {
        "size": [(f"210m-{share}", f"610m-{share}") for share in (0.0, 0.5, 1.0)],
        "clm_share": [
            (f"{size}-{first}", f"{size}-{second}")
            for size in ("210m", "610m")
            for first, second in ((0.0, 0.5), (0.0, 1.0), (0.5, 1.0))
        ],
    }


def test_models_that_differ_in_several_labels_are_no_pair(tmp_path: Path) -> None:
    """Those of two data sets have different sizes and objectives, too: no line has two models without dropping some."""
    labels: dict[str, dict[str, Any]] = {
        "x": {"size": "210m", "objective": "clm", "data": "A"},
        "y": {"size": "610m", "objective": "clm", "data": "B"},
        "z": {"size": "210m", "objective": "mlm", "data": "C"},
    }
    level = _level(tmp_path, labels, dict.fromkeys(labels, (0.5, 0.6)))
    assert _names(level) == {"model": [("x", "y"), ("x", "z"), ("y", "z")]}


def test_holms_correction_is_over_the_pairs_of_one_label(level: Level) -> None:
    table = comparison_table(level)
    assert table is not None
    by_label: dict[object, list[tuple[float, float]]] = {}
    for line in table.rows:
        found = dict(zip(table.head, line, strict=True))
        p, corrected = found["p"], found["p (Holm)"]
        assert isinstance(p, float)
        assert isinstance(corrected, float)
        by_label.setdefault(found["varies"], []).append((p, corrected))
    assert {label: len(found) for label, found in by_label.items()} == {"size": 3, "clm_share": 6}
    for found in by_label.values():
        p, corrected = min(found)
        assert corrected == pytest.approx(min(1.0, len(found) * p))


def test_a_baseline_is_compared_with_all_others(level: Level) -> None:
    names = [row.name for row in level.rows if row.name != "210m-0.5"]
    assert _names(level, "210m-0.5")["against the baseline"] == [(name, "210m-0.5") for name in names]
    assert "against the baseline" not in _names(level, "not of this level")


def test_without_labels_all_pairs_are_compared(tmp_path: Path) -> None:
    names: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "c": {}}
    level = _level(tmp_path, names, dict.fromkeys(names, (0.5, 0.6)))
    assert _names(level) == {"model": [("a", "b"), ("a", "c"), ("b", "c")]}


def test_models_of_different_pretraining_seeds_are_no_pair(tmp_path: Path) -> None:
    labels: dict[str, dict[str, Any]] = {
        f"{share}-{seed}": {"clm_share": share, "seed": seed} for share in (0.0, 0.5) for seed in (0, 1)
    }
    level = _level(tmp_path, labels, dict.fromkeys(labels, (0.5, 0.6)))
    assert _names(level) == {"clm_share": [("0.0-0", "0.5-0"), ("0.0-1", "0.5-1")]}


def test_the_difference_from_a_baseline_has_an_interval(tmp_path: Path) -> None:
    """0.02 and 0.04 more: 3 points, and t of 97.5 % with one degree of freedom times 1."""
    level = _level(tmp_path, {"a": {}, "b": {}}, {"a": (0.5, 0.6), "b": (0.52, 0.64)})
    (table,) = difference_tables(level, "a")
    assert table.name == "models-sc-differences"
    assert "| b | 3.00 \u00b1 12.71 |" in markdown(table)
    assert difference_tables(level, None) == []


def _with_baseline() -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Two shares of three pretraining seeds, and a published model with two fine-tuning seeds that is better."""
    labels: dict[str, dict[str, Any]] = {
        f"{share}-{seed}": {"clm_share": share, "seed": seed} for share in (0.0, 0.5) for seed in (0, 1, 2)
    }
    rows = [row(name, "sst2", 0, 0.5 + of["clm_share"] / 5 + of["seed"] / 100) for name, of in labels.items()]
    rows += [row("bert", "sst2", seed, 0.9 + seed / 50) for seed in (0, 1)]
    return rows, {**labels, "bert": {}}


def test_a_model_without_a_pretraining_seed_stays_in_the_first_tables(tmp_path: Path) -> None:
    rows, labels = _with_baseline()
    level = configuration_level(model_level(read_results([write_finished_grid(tmp_path, rows, labels=labels)])))
    assert level is not None
    text = markdown(next(table for table in score_tables(level) if table.name == "configurations-sc"))
    assert "| bert | \u2013 | **91.00 (1 seed)** |" in text
    assert "| CLM share 0 | 0 | 51.00 \u00b1 2.48 (3 seeds) |" in text
    assert "Without a pretraining seed, and so one observation each: bert." in text
    pairs = _names(level, "bert")["against the baseline"]
    assert pairs == [("CLM share 0", "bert"), ("CLM share 0.5", "bert")]


def test_its_score_is_taken_for_exact(tmp_path: Path) -> None:
    """50, 51 and 52 against 91: 40 points, and the interval of the mean of three."""
    rows, labels = _with_baseline()
    level = configuration_level(model_level(read_results([write_finished_grid(tmp_path, rows, labels=labels)])))
    assert level is not None
    (table,) = difference_tables(level, "bert")
    score = table.rows[0][-1]
    assert isinstance(score, MeanScore)
    assert score.estimate.mean == pytest.approx(-0.4)
    assert score.estimate.interval is not None
    assert score.estimate.interval.high == pytest.approx(-0.4 + 4.302652729911275 * 0.01 / 3**0.5)


def test_a_report_with_a_baseline_has_its_tables_and_leads_to_its_runs(tmp_path: Path) -> None:
    rows, labels = _with_baseline()
    output = write_report([write_finished_grid(tmp_path, rows, labels=labels)], baseline="bert")
    names = {path.stem for path in (output / "tables").glob("*-differences.md")}
    assert names == {"configurations-sc-differences", "models-sc-differences"}
    page = (output / "report.html").read_text()
    assert "less bert" in page
    assert page.count('<h3 id="model-6">bert</h3>') == 1
    assert 'id="configuration-2"' not in page
