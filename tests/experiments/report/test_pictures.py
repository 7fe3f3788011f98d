"""What figures show, and that their files are whole and the same each time."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import states_of, write_checkpoint
from tests.support.finished_grids import row, write_finished_grid
from tests.support.runs import write_run
from toolkit.checkpoint.manifest import MANIFEST_NAME, manifest_bytes, read_manifest
from toolkit.experiments.report.compare.levels import Level, ScoreRow, Seeds, configuration_level, model_level
from toolkit.experiments.report.figures.drawing import _tick, draw
from toolkit.experiments.report.figures.label_pictures import label_pictures
from toolkit.experiments.report.figures.lines import lines_of
from toolkit.experiments.report.figures.pictures import Panel, Picture, Point, Series, loss_picture
from toolkit.experiments.report.figures.rate_pictures import rate_pictures
from toolkit.experiments.report.read.labels import Shown
from toolkit.experiments.report.read.results import read_results
from toolkit.experiments.report.read.runs import read_runs
from toolkit.run import load_run


def _level(folder: Path, labels: dict[str, dict[str, Any]], **report: Any) -> Level:
    rows = [row(name, "sst2", seed, 0.5 + seed / 50 + n / 10) for n, name in enumerate(labels) for seed in (0, 1)]
    return model_level(read_results([write_finished_grid(folder, rows, labels=labels, report=report)]))


def _lines(labels: dict[str, dict[str, Any]], axis: str) -> dict[str, list[str]]:
    rows = tuple(ScoreRow(name, values, {}) for name, values in labels.items())
    names = tuple(dict.fromkeys(name for values in labels.values() for name in values))
    level = Level("models", Seeds.FINE_TUNING, rows, (), Shown(names, names))
    return {line: [row.name for row in members] for line, members in lines_of(level, axis).items()}


def test_a_picture_for_each_number_that_differs(tmp_path: Path) -> None:
    labels = {"a": {"clm_share": 0.0, "budget": 9, "data": "x"}, "b": {"clm_share": 0.5, "budget": 9, "data": "y"}}
    picture, by_data = label_pictures(_level(tmp_path, labels, lines=[]))
    assert (by_data.name, by_data.ticks) == ("models-by-data", ((0.0, "x"), (1.0, "y")))
    assert (picture.name, picture.x_label, picture.is_log) == ("models-by-clm-share", "CLM share", False)
    (panel,) = picture.panels
    (series,) = panel.series
    assert panel.title == "Sequence classification"
    assert [point.x for point in series.points] == [0.0, 0.5]
    assert [point.y for point in series.points] == pytest.approx([51.0, 61.0])
    low, high = series.points[0].low, series.points[0].high
    assert low is not None
    assert high is not None
    assert (low, high) == pytest.approx((51 - 12.7062047, 51 + 12.7062047))


def test_names_and_labels_may_have_signs_that_matplotlib_or_files_do_not_take(tmp_path: Path) -> None:
    labels = {"_a": {"x/y": 1, "kind": r"$\bad$"}, "b": {"x/y": 2, "kind": "$5"}}
    by_number, by_kind = label_pictures(_level(tmp_path, labels))
    assert (by_number.name, by_kind.name) == ("models-by-x-y", "models-by-kind")
    assert r"$\bad$" in "".join(ET.fromstring(draw(by_kind, "svg")).itertext())
    level = _level(tmp_path / "rates", {"_a": {}, "b": {}})
    points = (Point(1.0, 50.0),)
    series = tuple(Series(row.name, points, color) for color, row in enumerate(level.rows))
    picture = Picture("p", "t", "c", "x", (Panel("panel", series, "y"),))
    assert {"_a", "b"} <= {text.strip() for text in ET.fromstring(draw(picture, "svg")).itertext()}


def test_a_number_that_no_axis_holds_is_no_axis(tmp_path: Path) -> None:
    assert label_pictures(_level(tmp_path, {"a": {"x": 10**400}, "b": {"x": 1}})) == []


def test_lines_and_configurations_whose_short_names_are_equal_stay_apart() -> None:
    labels = {
        f"{peak}-{share}-{seed}": {"peak": peak, "clm_share": share, "seed": seed}
        for peak in (0.00012341, 0.00012342)
        for share in (0.0, 0.5)
        for seed in (0, 1)
    }
    members = [name for line in _lines(labels, "clm_share").values() for name in line]
    assert sorted(members) == sorted(labels)
    rows = tuple(ScoreRow(name, values, {}) for name, values in labels.items())
    level = configuration_level(Level("models", Seeds.FINE_TUNING, rows, ()))
    assert level is not None
    assert len(level.rows) == 4


def test_tokens_may_be_given_as_a_size() -> None:
    rows = tuple(
        ScoreRow(f"m{seed}", {"seed": seed, "training_tokens": size}, {}) for seed, size in enumerate(("1b", "3b"))
    )
    level = configuration_level(Level("models", Seeds.FINE_TUNING, rows, ()))
    assert level is not None
    assert level.rows[0].labels["training_tokens"] == 2e9


def test_lines_are_models_that_differ_in_the_axis_alone() -> None:
    labels = {f"{budget}-{share}": {"clm_share": share, "steps": budget} for budget in (12, 22) for share in (0.0, 0.5)}
    assert _lines(labels, "clm_share") == {"steps 12": ["12-0.0", "12-0.5"], "steps 22": ["22-0.0", "22-0.5"]}


def test_a_model_without_a_label_is_on_every_line_that_it_fits() -> None:
    """A pure CLM model has no mask ratio: it ends the line of each."""
    labels = {
        "clm": {"clm_share": 1.0},
        "mlm20": {"clm_share": 0.0, "mask_ratio": 0.2},
        "mlm40": {"clm_share": 0.0, "mask_ratio": 0.4},
    }
    assert _lines(labels, "clm_share") == {"mask ratio 0.2": ["clm", "mlm20"], "mask ratio 0.4": ["clm", "mlm40"]}


def test_a_run_may_have_the_name_of_those_on_no_line() -> None:
    labels = {f"{run}@{step}": {"run": run, "training_step": step} for run in ("a", "others") for step in (1, 2)}
    lines = _lines({**labels, "b": {"training_step": 4}}, "training_step")
    assert list(lines.values()) == [["a@1", "a@2"], ["others@1", "others@2"], ["b"]]


def test_steps_of_runs_that_differ_in_the_seed_end_with_the_end_of_these_runs() -> None:
    labels: dict[str, dict[str, Any]] = {}
    for run, seed in product("ab", (0, 1)):
        name, common = f"{run}-{seed}", {"objective": run, "seed": seed}
        labels[name] = {**common, "training_step": 4}
        labels |= {f"{name}@{step}": {**common, "run": name, "training_step": step} for step in (1, 2)}
    rows = tuple(ScoreRow(name, values, {}) for name, values in labels.items())
    level = configuration_level(Level("models", Seeds.FINE_TUNING, rows, ()))
    assert level is not None
    lines = {
        name: [row.labels["training_step"] for row in rows] for name, rows in lines_of(level, "training_step").items()
    }
    assert lines == {"objective a": [4, 1, 2], "objective b": [4, 1, 2]}


@pytest.mark.parametrize(
    ("values", "is_log", "named"),
    [
        ([0.0, 0.25, 0.5, 0.75, 1.0], False, True),
        ([1.25e12, 3.12e12, 6.25e12, 1.25e13], False, False),
        ([60.0, 150.0, 300.0, 450.0, 600.0], False, True),
        ([2e-4, 5e-4, 1e-3, 2e-3, 5e-3], True, True),
    ],
)
def test_values_are_named_where_their_names_have_room(values: list[float], is_log: bool, named: bool) -> None:
    points = tuple(Point(value, 50.0) for value in values)
    panel = Panel("panel", (Series("a", points, 0),), "y")
    shown = {
        text.strip() for text in ET.fromstring(draw(Picture("p", "t", "c", "x", (panel,), is_log), "svg")).itertext()
    }
    assert ({_tick(value) for value in values} <= shown) == named


def test_a_grid_file_says_what_figures_show(tmp_path: Path) -> None:
    """`order` is of texts; a label that is not one of `lines` tells no lines apart."""
    labels = {
        name: {"objective": name[0], "start": name[1], "seed": 0, "run_of": name} for name in ("ca", "cb", "ma", "mb")
    }
    level = _level(tmp_path, labels, x="start", lines=["objective"], order=["b", "m"])
    (picture,) = label_pictures(level)
    assert (picture.name, picture.ticks) == ("models-by-start", ((0.0, "b"), (1.0, "a")))
    lines = [(line.label, [point.y for point in line.points]) for line in picture.panels[0].series]
    assert lines == [("objective m", pytest.approx([81, 71])), ("objective c", pytest.approx([61, 51]))]


def test_checkpoints_have_a_line_for_each_run_along_their_steps() -> None:
    """The share falls along a run, and would make each a line of its own."""
    labels = {
        f"{run}@{step}": {"run": run, "training_step": step, "clm_share": 1 / step} for run in "ab" for step in (1, 2)
    }
    assert _lines(labels, "training_step") == {"a": ["a@1", "a@2"], "b": ["b@1", "b@2"]}
    assert _lines(labels, "clm_share") == {
        "training step 1": ["a@1", "b@1"],
        "training step 2": ["a@2", "b@2"],
    }


def test_the_line_of_a_run_ends_with_its_end_and_other_models_are_beside_it() -> None:
    """As in a study that keeps steps: its models are ends, and some have checkpoints before."""
    steps = {f"{run}@{step}": {"run": run, "training_step": step} for run in "ab" for step in (1, 2)}
    ends = {name: {"training_step": last} for name, last in (("a", 4), ("b", 4), ("c", 4), ("d", 3))}
    labels = {**steps, **ends}
    assert _lines(labels, "training_step") == {
        "a": ["a@1", "a@2", "a"],
        "b": ["b@1", "b@2", "b"],
        "others": ["c", "d"],
    }


def test_flops_tell_no_lines_apart(tmp_path: Path) -> None:
    """They differ with the mask ratio. Where no two models share a line, there is no mean to differ from."""
    labels = {
        f"{size}-{ratio}": {"size": size, "mask_ratio": ratio, "training_flops": 1e9 * ratio * len(size)}
        for size in ("7m", "17m")
        for ratio in (0.2, 0.4)
    }
    lines = {
        name: [row.name for row in rows] for name, rows in lines_of(_level(tmp_path, labels), "mask_ratio").items()
    }
    assert lines == {"model size 7m": ["7m-0.2", "7m-0.4"], "model size 17m": ["17m-0.2", "17m-0.4"]}
    asked = _level(tmp_path, labels, x="mask_ratio", lines=["training_flops"])
    assert len(lines_of(asked, "mask_ratio")) == 4
    apart = {"a": {"mask_ratio": 0.2, "data": "x"}, "b": {"mask_ratio": 0.4, "data": "y"}}
    names = [picture.name for picture in label_pictures(_level(tmp_path, apart))]
    assert names == ["models-by-mask-ratio", "models-by-data"]


def test_steps_that_span_much_have_a_logarithmic_axis(tmp_path: Path) -> None:
    (picture,) = label_pictures(_level(tmp_path, {"a": {"training_step": 1000}, "b": {"training_step": 40_000}}))
    assert picture.is_log


def test_scores_against_the_learning_rate(tmp_path: Path) -> None:
    by_rate = {1e-5: (0.5, 0.6), 1e-4: (0.7, 0.7)}
    rows = [row("a", "sst2", seed, scores[seed], rate=rate) for rate, scores in by_rate.items() for seed in (0, 1)]
    rows.append(row("a", "mnli", 0, 0.9))
    results = read_results([write_finished_grid(tmp_path, rows)])
    picture, _ = rate_pictures(results, model_level(results))
    (panel,) = picture.panels
    assert panel.title == "sst2"
    first, second = panel.series[0].points
    assert (first.x, first.y, first.low, first.high) == pytest.approx((1e-5, 55, 55 - 7.0710678, 55 + 7.0710678))
    assert (second.x, second.y, second.low, second.high) == pytest.approx((1e-4, 70, 70, 70))


def test_rates_by_objective_and_their_spread(tmp_path: Path) -> None:
    """Two MLM models, 60 and 80 at both rates, whose seeds are 2 and 4 apart: variances 2 and 8, pooled 5.

    A model that lacks a rate does not count, and neither does a seed that a data set lacks.
    """
    labels = {name: {"objective": name.partition("-")[0]} for name in ("mlm-a", "mlm-b", "mlm-c", "clm-a")}
    rows = [
        row(model, task, seed, mean + sign * apart / 2, rate=rate)
        for model, mean, apart in (("mlm-a", 0.6, 0.02), ("mlm-b", 0.8, 0.04), ("clm-a", 0.5, 0.0))
        for task in ("sst2", "mnli")
        for rate in (1e-5, 1e-4)
        for seed, sign in ((0, -1), (1, 1))
    ]
    rows += [row("mlm-c", task, 0, 0.99, rate=1e-5) for task in ("sst2", "mnli")]
    rows.append(row("mlm-a", "sst2", 2, 0.99, rate=1e-5))
    results = read_results([write_finished_grid(tmp_path, rows, labels=labels)])
    curves, spread = rate_pictures(results, model_level(results))
    (panel,) = curves.panels
    assert (panel.title, panel.y_label) == ("Sequence classification", "test score (%)")
    series = {series.label: series for series in panel.series}
    assert set(series) == {"objective mlm", "objective clm"}
    for point, rate in zip(series["objective mlm"].points, (1e-5, 1e-4), strict=True):
        assert (point.x, point.y, point.low, point.high) == pytest.approx((rate, 70, 70 - 5**0.5, 70 + 5**0.5))
    assert "pooled standard deviation" in curves.caption
    # Each value is there twice: (2 x 2 x 1 ** 2) / 3 and (2 x 2 x 2 ** 2) / 3.
    (point,) = next(line for line in spread.panels[0].series if line.label == "objective mlm").points
    assert (point.y, point.low) == pytest.approx((70, 70 - (10 / 3) ** 0.5))


def test_the_spread_is_over_rates_alike(tmp_path: Path) -> None:
    """A rate with three seeds counts as much as one with a single seed: 50 and 80 on the seed that both have."""
    rows = [row("a", "sst2", 0, 0.5, rate=1e-5)]
    rows += [row("a", "sst2", seed, 0.8 + seed / 50, rate=1e-4) for seed in (0, 1, 2)]
    results = read_results([write_finished_grid(tmp_path, rows)])
    curves, spread = rate_pictures(results, model_level(results))
    (point,) = spread.panels[0].series[0].points
    assert (point.y, point.low) == pytest.approx((65, 65 - 450**0.5))
    assert "the seeds that all rates of a model have (1 seed)" in spread.caption
    assert "of seeds, 1 to 3 of them" in curves.caption


def test_an_answer_that_reads_no_text_is_a_line_where_it_is_near(tmp_path: Path) -> None:
    rows = [
        row(name, "sst2", seed, 0.6 + x / 9 + seed / 20, majority=0.55)
        for x, name in enumerate("ab")
        for seed in (0, 1)
    ]
    labels = {name: {"x": x} for x, name in enumerate("ab")}
    (picture,) = label_pictures(model_level(read_results([write_finished_grid(tmp_path, rows, labels=labels)])))
    assert picture.panels[0].floor == pytest.approx(55)
    assert "Dashed, unless far below: the best answer that reads no text." in picture.caption
    plain = replace(picture, panels=(replace(picture.panels[0], floor=None),))
    far = replace(picture, panels=(replace(picture.panels[0], floor=-300.0),))
    assert draw(far, "svg") == draw(plain, "svg") != draw(picture, "svg")


def test_models_without_the_label_are_named_below_the_figure(tmp_path: Path) -> None:
    (picture,) = label_pictures(_level(tmp_path, {"a": {"x": 1}, "b": {"x": 2}, "bert": {}}))
    assert "Not drawn (no x): bert." in picture.caption


def test_signs_that_no_font_has_say_nothing(recwarn: pytest.WarningsRecorder) -> None:
    picture = Picture("p", "t", "c", "\u4e2d\u6587", (Panel("panel", (Series("a", (Point(1.0, 50.0),), 0),), "y"),))
    assert "\u4e2d\u6587".encode() in draw(picture, "svg")
    draw(picture, "pdf")
    assert list(recwarn) == []


def test_models_without_an_objective_are_lines_of_their_own(tmp_path: Path) -> None:
    rows = [row(model, "sst2", 0, 0.5, rate=rate) for model in ("a", "b") for rate in (1e-5, 1e-4)]
    results = read_results([write_finished_grid(tmp_path, rows)])
    curves, _ = rate_pictures(results, model_level(results))
    assert [series.label for series in curves.panels[0].series] == ["a", "b"]
    assert "pooled" not in curves.caption


def _run(folder: Path) -> Path:
    folder.mkdir()
    lines: list[dict[str, Any]] = [{"step": 0, "objective": "clm", "eval_loss": {"clm": 9.0}}]
    lines += [{"step": step, "objective": "clm", "loss": 9.0 - step} for step in (1, 2)]
    lines += [{"step": 3, "objective": "mlm", "loss": 5.5, "eval_loss": {"clm": 8.0, "mlm": 5.0}}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_losses_of_runs_and_the_switch(tmp_path: Path) -> None:
    picture = loss_picture(read_runs([_run(tmp_path / "one")]))
    assert picture is not None
    training, clm, mlm = picture.panels
    assert training.marks == (2.0,)
    assert training.series[0].points == (Point(1.0, 8.0), Point(2.0, 7.0), Point(3.0, 5.5))
    # The loss of the first weights would set the scale.
    assert clm.series[0].points == (Point(3.0, 8.0),)
    assert (mlm.title, mlm.series[0].points) == ("held out: MLM", (Point(3.0, 5.0),))
    assert loss_picture([]) is None


def test_runs_that_differ_in_the_seed_alone_are_one_line_with_their_range(tmp_path: Path) -> None:
    for arm, rate in (("mlm", 1), ("both", 2)):
        for seed in (0, 1, 12):
            run = tmp_path / f"{arm}-seed-{seed}"
            run.mkdir()
            lines = [{"step": step, "objective": "mlm", "loss": 9.0 - step + seed} for step in range(1, 4 - seed % 2)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (run / "run.toml").write_text(f'[run]\ndir = "{run}"\nseed = {seed}\n[lr]\npeak = {rate}\n')
    picture = loss_picture(read_runs(sorted(tmp_path.iterdir())))
    assert picture is not None
    (panel,) = picture.panels
    # Seeds 0 and 12: 8 and 20, then one less. Seed 1 is still a step behind.
    mean = (Point(1.0, 14.0, 8.0, 20.0), Point(2.0, 13.0, 7.0, 19.0), Point(3.0, 12.0, 6.0, 18.0))
    alone = (Point(1.0, 9.0), Point(2.0, 8.0))
    labels = ["both", "both-seed-1", "mlm", "mlm-seed-1"]
    assert [(line.label, line.points) for line in panel.series] == list(zip(labels, [mean, alone] * 2, strict=True))
    assert [line.color for line in panel.series] == [0, 1, 2, 3]
    assert "Bands: " in picture.caption


def test_a_run_that_has_made_no_step_has_no_picture(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "objective": "clm", "eval_loss": {"clm": 9.0}}\n')
    assert loss_picture(read_runs([tmp_path])) is None


def test_models_at_one_place_of_an_axis_have_names_and_colours(tmp_path: Path) -> None:
    arms = {"phases": (0.5, "clm+mlm"), "mixture": (0.5, "clm.mlm"), "mlm": (0.0, "mlm")}
    labels = {name: {"clm_share": share, "objective": objective} for name, (share, objective) in arms.items()}
    (picture,) = label_pictures(_level(tmp_path, labels, x=["clm_share"]))
    series = picture.panels[0].series
    assert [(line.label, line.color, [point.x for point in line.points]) for line in series] == [
        ("objective clm+mlm", 0, [0.5]),
        ("objective clm.mlm", 1, [0.5]),
        ("objective mlm", 2, [0.0]),
    ]
    # Without another label, models have their own names.
    (alone,) = label_pictures(_level(tmp_path, {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 2}}))
    assert [line.label for line in alone.panels[0].series] == ["a", "b", "c"]


def test_pure_shares_end_the_line_of_phases_beside_a_mixture() -> None:
    """Likewise where the mixture has a share of its own; one share of a recipe is a point."""
    shares = {"mlm": (0.0, "mlm"), "p25": (0.25, "clm+mlm"), "p50": (0.5, "clm+mlm"), "clm": (1.0, "clm")}
    for mixed in (0.5, 0.6):
        arms = {**shares, "mixed": (mixed, "clm.mlm")}
        labels = {name: {"clm_share": share, "objective": objective} for name, (share, objective) in arms.items()}
        assert _lines(labels, "clm_share") == {
            "objective clm+mlm": ["p25", "p50", "mlm", "clm"],
            "objective clm.mlm": ["mixed"],
        }


def test_first_weights_do_not_set_the_scale_of_training_steps(tmp_path: Path) -> None:
    labels = {f"a@{step}": {"run": "a", "training_step": step} for step in (0, 1000, 40_000)}
    (picture,) = label_pictures(_level(tmp_path, labels, x=["training_step"]))
    assert [point.x for point in picture.panels[0].series[0].points] == [1000, 40_000]
    assert picture.is_log
    assert "Not drawn (training step 0): a@0." in picture.caption


def test_a_mixtures_loss_is_the_mean_of_its_targets_and_no_weighted_sum(tmp_path: Path) -> None:
    run = _run(tmp_path / "one")
    line = {"objective": "clm+mlm", "losses": {"clm": 4.0, "mlm": 6.0}, "targets": {"clm": 300, "mlm": 100}}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "loss": 13.0} | line) + "\n")
        # A step that drew no target of one of them.
        file.write(json.dumps({"step": 5, "loss": 9.0} | line | {"losses": {"mlm": 6.0}}) + "\n")
    assert read_runs([run])[0].training[-2:] == ((4.0, 4.5), (5.0, 6.0))


def test_losses_of_named_corpora_stand_beside_one_another(tmp_path: Path) -> None:
    """Those of one run in one panel; those of several runs in one panel for each corpus, as the runs' lines."""
    runs = [_run(tmp_path / name) for name in ("one", "two")]
    with (runs[0] / "metrics.jsonl").open("a") as file:
        losses = {"mlm": 4.5, "web": {"mlm": 4.0}, "code": {"mlm": 5.0}}
        file.write(json.dumps({"step": 4, "objective": "mlm", "eval_loss": losses}) + "\n")
    picture = loss_picture(read_runs(runs[:1]))
    assert picture is not None
    *overall, parts = picture.panels
    assert [panel.title for panel in overall] == ["training batches", "held out: CLM", "held out: MLM"]
    assert overall[2].series[0].points == (Point(3.0, 5.0), Point(4.0, 4.5))
    assert parts.title == "held out: MLM, by corpus"
    assert [(line.label, line.points, line.color) for line in parts.series] == [
        ("one, web", (Point(4.0, 4.0),), 1),
        ("one, code", (Point(4.0, 5.0),), 2),
    ]
    both = loss_picture(read_runs(runs))
    assert both is not None
    web, code = both.panels[3:]
    assert (web.title, code.title) == ("held out: MLM, web", "held out: MLM, code")
    assert [(line.label, line.points, line.color) for line in code.series] == [("one", (Point(4.0, 5.0),), 0)]


def test_a_continued_run_says_what_it_began_with(tmp_path: Path) -> None:
    run = _run(tmp_path / "cpt")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (run / "checkpoints").mkdir()
    checkpoint = write_checkpoint(run / "checkpoints", 3, states=states_of(3), tokenizer_folder=tokenizer)
    assert read_runs([run])[0].title == "cpt"
    origin = {"run": "clm-42k", "step": "42000"}
    manifest = read_manifest(checkpoint).model_copy(update={"origin": origin})
    (checkpoint / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
    picture = loss_picture(read_runs([run]))
    assert picture is not None
    assert {series.label for panel in picture.panels for series in panel.series} == {"cpt, from clm-42k step 42000"}


def test_a_branch_says_where_it_began_and_marks_a_switch_there(tmp_path: Path) -> None:
    run = tmp_path / "mlm"
    run.mkdir()
    lines = [{"step": step, "objective": "mlm", "loss": 9.0 - step} for step in (3, 4)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (run / "checkpoints").mkdir()
    checkpoint = write_checkpoint(run / "checkpoints", 4, states=states_of(4), tokenizer_folder=tokenizer)
    begun = {"from": str(tmp_path / "trunk/checkpoints/step-00000002"), "step": 2}
    for past, marks in (("clm", (2.0,)), ("mlm", ())):
        settings = load_run(str(write_run(tmp_path))).model_dump(mode="json", by_alias=True)
        settings |= {"fork": begun, "schedule": [{"objective": past, "steps": 2}, {"objective": "mlm", "steps": 4}]}
        manifest = read_manifest(checkpoint).model_copy(update={"settings": settings})
        (checkpoint / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
        picture = loss_picture(read_runs([run]))
        assert picture is not None
        assert picture.panels[0].series[0].label == "mlm, from trunk step 2"
        assert picture.panels[0].marks == marks


def test_a_fork_is_drawn_from_its_trunks_first_step_where_that_is_not_drawn_itself(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    trunk, fork = tmp_path / "trunk", tmp_path / "fork"
    raw = load_run(str(write_run(tmp_path))).model_dump(mode="json", by_alias=True)
    taken = {"from": str(trunk / "checkpoints/step-00000002"), "step": 2}
    for run, step, settings in ((trunk, 2, raw), (fork, 4, raw | {"fork": taken})):
        write_checkpoint(
            run / "checkpoints",
            step,
            states=states_of(step),
            tokenizer_folder=tmp_path / "tokenizer",
            settings=settings,
        )
        lines = [{"step": made, "objective": "clm", "loss": 9.0 - made} for made in range(step - 1, step + 2)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (alone,) = read_runs([fork])
    assert (alone.training, alone.title) == (
        ((1, 8.0), (2, 7.0), (3, 6.0), (4, 5.0), (5, 4.0)),
        "fork, from trunk step 2",
    )
    assert [run.training for run in read_runs([trunk, fork])] == [
        ((1, 8.0), (2, 7.0), (3, 6.0)),
        ((3, 6.0), (4, 5.0), (5, 4.0)),
    ]


def test_places_of_an_axis_have_names(tmp_path: Path) -> None:
    labels = {"a": {"size": "210m", "start": "random"}, "b": {"size": "1b", "start": "a rather long name of a run"}}
    for picture in label_pictures(_level(tmp_path, labels)):
        root = ET.fromstring(draw(picture, "svg"))
        texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
        assert texts >= ({"210m", "1b"} if picture.is_log else {"random", "a rather long name of", "a run"})


@pytest.mark.parametrize(("value", "text"), [(1e-4, "1e-4"), (2.5e-5, "2.5e-5"), (0.25, "0.25"), (12e3, "12,000")])
def test_numbers_on_an_axis(value: float, text: str) -> None:
    assert _tick(value) == text


@pytest.fixture
def picture(tmp_path: Path) -> Picture:
    return label_pictures(_level(tmp_path, {"a": {"clm_share": 0.0}, "b": {"clm_share": 0.5}}))[0]


def test_svg_is_one_column_wide_text_stays_text_and_bytes_are_the_same(picture: Picture) -> None:
    svg = draw(picture, "svg")
    assert svg == draw(picture, "svg")
    root = ET.fromstring(svg)
    assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * 3.35)
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Sequence classification", "CLM share", "test score (%)", "0.5"} <= texts
    assert b"http://" not in svg.replace(b"http://www.w3.org", b"").replace(b"http://purl.org", b"").replace(
        b"http://creativecommons.org", b""
    )


def test_pdf_is_the_same_each_time(picture: Picture) -> None:
    pdf = draw(picture, "pdf")
    assert pdf.startswith(b"%PDF-")
    assert pdf == draw(picture, "pdf")
