"""Tables from hand-made grids, with numbers computed by hand."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.finished_grids import row, write_finished_grid
from toolkit.experiments.report.compare.comparisons import comparison_table
from toolkit.experiments.report.compare.formats import comma_separated, latex, latex_document, markdown
from toolkit.experiments.report.compare.levels import Level, Seeds, configuration_level, model_level
from toolkit.experiments.report.compare.score_tables import score_tables
from toolkit.experiments.report.compare.tables import Table, distinct_names, rates_table, scores_csv
from toolkit.experiments.report.read.results import Results, read_results

# t of 97.5 % with one degree of freedom, so that two seeds 0.02 apart have the interval mean +- 0.1270620473617.
T_1 = 12.706204736174698


def _results(folder: Path, *rows: dict[str, Any], **more: Any) -> Results:
    return read_results([write_finished_grid(folder, rows, **more)])


def _two_tasks(model: str, shift: float = 0.0) -> list[dict[str, Any]]:
    return [
        row(model, "sst2", 0, 0.80 + shift),
        row(model, "sst2", 1, 0.82 + shift),
        row(model, "mnli", 0, 0.60 + shift),
        row(model, "mnli", 1, 0.62 + shift),
    ]


def _table(level: Level, name: str) -> Table:
    return next(table for table in score_tables(level) if table.name == name)


def test_scores_csv_has_the_chosen_rates_in_full_precision(tmp_path: Path) -> None:
    """Of a's two rates, validation prefers the one whose test scores are worse; b has a single seed."""
    rows = [
        row("a", "sst2", 0, 0.80, rate=1e-5, validation=0.9),
        row("a", "sst2", 1, 0.82, rate=1e-5, validation=0.9),
        row("a", "sst2", 0, 0.99, rate=2e-5, validation=0.8),
        row("a", "sst2", 1, 0.99, rate=2e-5, validation=0.8),
        row("b", "nq", 3, 0.4, kind="ir"),
    ]
    found = list(csv.DictReader(io.StringIO(scores_csv(_results(tmp_path, *rows)))))
    first, second = found
    assert ",".join(first) == "model,task,kind,metric,learning_rate,seeds,mean,std,low,high"
    assert [first[key] for key in ("model", "task", "kind", "metric", "seeds")] == ["a", "sst2", "sc", "accuracy", "2"]
    assert float(first["learning_rate"]) == 1e-5
    assert float(first["mean"]) == pytest.approx(0.81, abs=1e-15)
    assert float(first["std"]) == pytest.approx(0.02 / 2**0.5)
    half = T_1 * 0.01
    assert (float(first["low"]), float(first["high"])) == pytest.approx((0.81 - half, 0.81 + half))
    keys = ("kind", "metric", "seeds", "std", "low", "high")
    assert [second[key] for key in keys] == ["ir", "ndcg@10", "1", "", "", ""]


def test_a_family_has_its_data_sets_and_their_average(tmp_path: Path) -> None:
    """The average's variance is (0.0001 + 0.0001) / 4, with 2 degrees of freedom: 4.3027 x 0.00707."""
    level = model_level(_results(tmp_path, *_two_tasks("a"), *_two_tasks("b", 0.05)))
    lines = markdown(_table(level, "models-sc")).splitlines()
    assert lines[2] == "| model | sst2 (accuracy) | mnli (accuracy) | average |"
    assert lines[3] == "| --- | ---: | ---: | ---: |"
    assert lines[4] == "| a | 81.00 ± 12.71 | 61.00 ± 12.71 | 71.00 ± 3.04 |"
    assert lines[5] == "| b | **86.00 ± 12.71** | **66.00 ± 12.71** | **76.00 ± 3.04** |"
    assert "pretrained once" in lines[7]


def test_an_average_needs_all_data_sets(tmp_path: Path) -> None:
    """b has no mnli: its mean over sst2 alone would look better than a's over both."""
    level = model_level(_results(tmp_path, *_two_tasks("a"), row("b", "sst2", 0, 0.7)))
    table = comma_separated(_table(level, "models-sc"))
    assert table.splitlines()[2] == "b,70.00,,,,,,,,"
    assert table.splitlines()[0].endswith(",average,average low,average high")


def test_families_stand_side_by_side(tmp_path: Path) -> None:
    rows = [row("a", "sst2", seed, 0.8 + seed / 100) for seed in (0, 1)]
    rows += [row("a", "uner", seed, 0.5, kind="tc") for seed in (0, 1)]
    level = model_level(_results(tmp_path, *rows))
    assert [table.name for table in score_tables(level)] == ["models-families", "models-sc", "models-tc"]
    head = markdown(_table(level, "models-families")).splitlines()[2]
    assert head == "| model | Sequence classification | Token classification |"


def test_sizes_have_their_own_tables(tmp_path: Path) -> None:
    labels = {"a": {"size": "210m", "clm_share": 0.0}, "b": {"size": "610m", "clm_share": 0.25}}
    level = model_level(_results(tmp_path, *_two_tasks("a"), *_two_tasks("b"), labels=labels))
    small = _table(level, "models-sc-210m")
    assert [line[0] for line in small.rows] == ["a"]
    assert [line[0] for line in _table(level, "models-sc").rows] == ["a", "b"]
    assert _table(level, "models-sc").head[:3] == ("model", "size", "clm_share")


def test_names_that_files_spell_alike_have_files_of_their_own(tmp_path: Path) -> None:
    labels = {name: {"size": size} for name, size in {"a": "a/b", "b": "a-b", "c": "A b"}.items()}
    level = model_level(_results(tmp_path, *_two_tasks("a"), *_two_tasks("b"), *_two_tasks("c"), labels=labels))
    tables = score_tables(level)
    found = dict(zip(distinct_names(table.name for table in tables), tables, strict=True))
    rows = {name: [line[0] for line in table.rows] for name, table in found.items() if name.startswith("models-sc-")}
    assert {name: rows[name] for name in ("models-sc-a-b", "models-sc-a-b-2", "models-sc-A-b-3")} == {
        "models-sc-a-b": ["a"],
        "models-sc-a-b-2": ["b"],
        "models-sc-A-b-3": ["c"],
    }


def _pretrained_twice() -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Two shares, each pretrained twice, 0.02 apart in both tasks."""
    shifts = {"a0": 0.0, "a1": 0.02, "b0": 0.1, "b1": 0.14}
    labels = {name: {"clm_share": 0.25 if name[0] == "a" else 0.5, "seed": int(name[1])} for name in shifts}
    return [entry for name, shift in shifts.items() for entry in _two_tasks(name, shift)], labels


def test_models_that_differ_in_the_seed_are_one_configuration(tmp_path: Path) -> None:
    """sst2 of a0 and a1: 0.81 and 0.83. Their average with mnli moves with the seed too: 0.71 and 0.73."""
    rows, labels = _pretrained_twice()
    level = configuration_level(model_level(_results(tmp_path, *rows, labels=labels)))
    assert level is not None
    assert level.seeds is Seeds.PRETRAINING
    lines = markdown(_table(level, "configurations-sc")).splitlines()
    assert lines[2] == "| clm_share | sst2 (accuracy) | mnli (accuracy) | average |"
    assert lines[4] == "| 0.25 | 82.00 ± 12.71 | 62.00 ± 12.71 | 72.00 ± 12.71 |"
    assert "pretrained once" not in lines[-1]


def test_models_pretrained_once_are_no_configurations(tmp_path: Path) -> None:
    rows, labels = _pretrained_twice()
    for name in labels:
        labels[name]["seed"] = 0
    assert configuration_level(model_level(_results(tmp_path / "same", *rows, labels=labels))) is None
    assert configuration_level(model_level(_results(tmp_path / "none", *rows))) is None


def test_pairs_of_models_are_tested_within_each_column(tmp_path: Path) -> None:
    """b is 0.05 and 0.07 above a: t is 6 with one degree of freedom, a Cauchy's tail. Three pairs are corrected."""
    p = 1 - 2 * math.atan(6) / math.pi
    rows = [row("a", "sst2", 0, 0.80), row("a", "sst2", 1, 0.80)]
    rows += [row("b", "sst2", 0, 0.85), row("b", "sst2", 1, 0.87)]
    rows += [row("c", "sst2", 0, 0.80), row("c", "sst2", 1, 0.80)]
    table = comparison_table(model_level(_results(tmp_path, *rows)))
    assert table is not None
    first = dict(zip(table.head, table.rows[0], strict=True))
    assert [first[key] for key in ("family", "data set", "first", "second", "pairs")] == ["sc", "sst2", "a", "b", 2]
    assert first["difference"] == pytest.approx(-6.0)
    assert first["p"] == pytest.approx(p)
    assert first["p (Holm)"] == pytest.approx(3 * p)
    second = dict(zip(table.head, table.rows[1], strict=True))
    assert (second["second"], second["p"], second["p (Holm)"]) == ("c", 1.0, 1.0)
    assert "| sc | sst2 | model | a | b | 2 | -6.00 | -18.71 | 6.71 | 0.1051 | 0.3154 |" in markdown(table)


def test_what_learnt_nothing_is_marked(tmp_path: Path) -> None:
    """b is where an answer that reads no text is; that answer is no candidate for the best score."""
    rows = [row("a", "sst2", seed, 0.7, majority=0.6) for seed in (0, 1)]
    rows += [row("b", "sst2", seed, 0.6, majority=0.6) for seed in (0, 1, 2)]
    table = _table(model_level(_results(tmp_path, *rows)), "models-sc")
    lines = markdown(table).splitlines()
    assert lines[4:7] == [
        "| a | **70.00 \u00b1 0.00 (2 seeds)** |",
        "| b | 60.00 \u00b1 0.00 (3 seeds) \u2021 |",
        "| reads no text | 60.00 |",
    ]
    assert "\u2021 marks scores that are not above it" in lines[-1]
    assert comma_separated(table).splitlines()[-1] == "reads no text,60.00,,"
    assert "(3 seeds) \u2021 \\\\" in latex(table)


def test_the_best_model_is_bold_even_below_an_answer_that_reads_no_text(tmp_path: Path) -> None:
    rows = [row(name, "sst2", 0, score, majority=0.9) for name, score in (("a", 0.5), ("b", 0.6))]
    lines = markdown(_table(model_level(_results(tmp_path, *rows)), "models-sc")).splitlines()
    assert lines[5:7] == ["| b | **60.00 (1 seed) \u2021** |", "| reads no text | 90.00 |"]


def test_no_answer_without_reading_for_a_family_of_which_a_set_has_none(tmp_path: Path) -> None:
    rows = [row("a", "sst2", 0, 0.7, majority=0.6), row("a", "stsb", 0, 0.7)]
    line = _table(model_level(_results(tmp_path, *rows)), "models-sc").rows[-1]
    assert (line[0], line[2], line[3]) == ("reads no text", None, None)


def test_numbers_of_seeds_and_test_items_are_told(tmp_path: Path) -> None:
    folder = write_finished_grid(tmp_path, _two_tasks("a"))
    cell = folder / "cells/a/sst2/lr-0.0001/seed-1"
    cell.mkdir(parents=True)
    (cell / "predictions.jsonl").write_text("{}\n" * 1821)
    table = _table(model_level(read_results([folder])), "models-sc")
    assert table.remarks == "Each score is over 2 fine-tuning seeds. Test items: sst2 1,821."
    assert "how far other items would move a score is in no interval" in table.note


def _same_training(folder: Path, *tasks: str) -> None:
    for task in tasks:
        cell = folder / f"cells/a/{task}/lr-0.0001/seed-0"
        cell.mkdir(parents=True)
        data = {"train": {f"{task}-pairs.tsv": "hash"}, "test": {f"{task}.tsv": task}}
        (cell / "declared.json").write_text(json.dumps({"data": data}))


def test_data_sets_with_equal_training_data_are_one_observation_per_seed(tmp_path: Path) -> None:
    """81 and 61, 61 and 81, and a third set of its own: means of 71 and 71 have no spread, 50 and 52 have."""
    rows = [row("a", task, seed, score) for task, scores in _TWISTED.items() for seed, score in enumerate(scores)]
    folder = write_finished_grid(tmp_path, rows)
    before = model_level(read_results([folder]))
    _same_training(folder, "nq", "mldr")
    level = model_level(read_results([folder]))
    found = level.rows[0].estimate(level.tasks)
    assert found is not None
    assert found.interval is not None
    assert found.mean == pytest.approx((0.71 + 0.71 + 0.51) / 3)
    assert found.interval.high - found.mean == pytest.approx(T_1 * 0.01 / 3)
    apart = before.rows[0].estimate(before.tasks)
    assert apart is not None
    assert apart.mean == pytest.approx(found.mean)
    assert (apart.nums, found.nums) == ((2, 2, 2), (2, 2))


_TWISTED = {"nq": (0.81, 0.61), "mldr": (0.61, 0.81), "other": (0.50, 0.52)}


def test_chosen_rates(tmp_path: Path) -> None:
    results = _results(tmp_path, row("a", "sst2", 0, 0.8, rate=2e-5), row("b", "mnli", 0, 0.8, rate=5e-4))
    table = rates_table(results, model_level(results))
    assert markdown(table).splitlines()[4:6] == ["| a | 2e-05 | \u2013 |", "| b | \u2013 | 0.0005 |"]


def test_latex_escapes_names_and_has_rules(tmp_path: Path) -> None:
    name = "50%_clm & $x^2$"
    results = _results(tmp_path, row(name, "conll_2003", 0, 0.8), row(name, "conll_2003", 1, 0.82))
    text = latex(_table(model_level(results), "models-sc"))
    assert r"50\%\_clm \& \$x\textasciicircum{}2\$ & 81.00 ± 12.71 \\" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    assert r"\begin{tabular}{lr}" in text
    document = latex_document(["models-sc"])
    assert r"\usepackage{booktabs,longtable}" in document
    assert r"\input{models-sc.tex}" in document


@pytest.mark.parametrize(
    ("name", "first_cell"),
    [("[10pt] a", r"{}[10pt] a & "), ("*", r"{}* & ")],
)
def test_latex_takes_a_name_for_nothing_else(tmp_path: Path, name: str, first_cell: str) -> None:
    """A bracket after the end of a row would be a distance, a star would be lost."""
    text = latex(_table(model_level(_results(tmp_path, row(name, "sst2", 0, 0.8))), "models-sc"))
    assert any(line.startswith(first_cell) for line in text.splitlines())


def test_a_long_table_breaks_across_pages(tmp_path: Path) -> None:
    """9 models make 36 pairs; the heading is there twice, for the first page and for the others."""
    rows = [row(f"m{number}", "sst2", seed, 0.5 + number * seed / 50) for number in range(9) for seed in (0, 1)]
    table = comparison_table(model_level(_results(tmp_path, *rows)))
    assert table is not None
    text = latex(table)
    assert text.count(r"\begin{longtable}{lllllrrrrrr}") == 1
    assert (text.count(r"\toprule"), text.count(r"\endhead"), text.count(r"\bottomrule")) == (2, 1, 1)
    assert text.endswith(f"{table.note.replace('%', chr(92) + '%')}\n")


def test_markdown_escapes_bars(tmp_path: Path) -> None:
    text = markdown(_table(model_level(_results(tmp_path, row("a|b", "t*", 0, 0.8))), "models-sc"))
    assert r"| a\|b | 80.00 (1 seed) |" in text
    assert r"t\* (accuracy)" in text
