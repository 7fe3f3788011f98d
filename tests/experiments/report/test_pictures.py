"""What figures show, and that their files are whole and the same each time."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.support.finished_grids import row, write_finished_grid
from toolkit.experiments.report.drawing import Shape, draw
from toolkit.experiments.report.levels import Level, Row, model_level
from toolkit.experiments.report.pictures import Picture, Point, group_rows, label_pictures, loss_picture, rate_picture
from toolkit.experiments.report.results import read_results
from toolkit.experiments.report.runs import read_runs


def _level(folder: Path, labels: dict[str, dict[str, Any]]) -> Level:
    rows = [row(name, "sst2", seed, 0.5 + seed / 50 + n / 10) for n, name in enumerate(labels) for seed in (0, 1)]
    return model_level(read_results([write_finished_grid(folder, rows, labels=labels)]))


def _lines(labels: dict[str, dict[str, Any]], axis: str) -> dict[str, list[str]]:
    rows = [Row(name, values, {}) for name, values in labels.items()]
    return {line: [row.name for row in members] for line, members in group_rows(rows, axis).items()}


def test_a_picture_for_each_number_that_differs(tmp_path: Path) -> None:
    labels = {"a": {"clm_share": 0.0, "budget": 9, "data": "x"}, "b": {"clm_share": 0.5, "budget": 9, "data": "y"}}
    (picture,) = label_pictures(_level(tmp_path, labels))
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


def test_what_follows_from_other_labels_makes_no_lines() -> None:
    labels = {name: {"clm_share": share, "training_flops": 1e9 + share} for name, share in (("a", 0.0), ("b", 0.5))}
    assert _lines(labels, "clm_share") == {"": ["a", "b"]}


def test_labels_that_leave_single_points_are_dropped() -> None:
    labels = {"a": {"clm_share": 0.0, "run": "x"}, "b": {"clm_share": 0.5, "run": "y"}}
    assert _lines(labels, "clm_share") == {"": ["a", "b"]}


def test_steps_that_span_much_have_a_logarithmic_axis(tmp_path: Path) -> None:
    (picture,) = label_pictures(_level(tmp_path, {"a": {"training_step": 1000}, "b": {"training_step": 40_000}}))
    assert picture.is_log


def test_scores_against_the_learning_rate(tmp_path: Path) -> None:
    by_rate = {1e-5: (0.5, 0.6), 1e-4: (0.7, 0.7)}
    rows = [row("a", "sst2", seed, scores[seed], rate=rate) for rate, scores in by_rate.items() for seed in (0, 1)]
    rows.append(row("a", "mnli", 0, 0.9))
    results = read_results([write_finished_grid(tmp_path, rows)])
    picture = rate_picture(results, model_level(results), {"a": ["a"]})
    assert picture is not None
    (panel,) = picture.panels
    assert panel.title == "sst2"
    first, second = panel.series[0].points
    assert (first.x, first.y, first.low, first.high) == pytest.approx((1e-5, 55, 55 - 7.0710678, 55 + 7.0710678))
    assert (second.x, second.y, second.low, second.high) == pytest.approx((1e-4, 70, 70, 70))


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
    assert clm.series[0].points == (Point(0.0, 9.0), Point(3.0, 8.0))
    assert (mlm.title, mlm.series[0].points) == ("held out: MLM", (Point(3.0, 5.0),))
    assert loss_picture([]) is None


@pytest.fixture
def picture(tmp_path: Path) -> Picture:
    return label_pictures(_level(tmp_path, {"a": {"clm_share": 0.0}, "b": {"clm_share": 0.5}}))[0]


@pytest.mark.parametrize("shape", list(Shape))
def test_svg_is_whole_text_stays_text_and_bytes_are_the_same(picture: Picture, shape: Shape) -> None:
    svg = draw(picture, "svg", shape)
    assert svg == draw(picture, "svg", shape)
    root = ET.fromstring(svg)
    assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * shape.value[0], rel=0.3)
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Sequence classification", "CLM share", "test score (%)", "0.5"} <= texts
    assert b"http://" not in svg.replace(b"http://www.w3.org", b"").replace(b"http://purl.org", b"").replace(
        b"http://creativecommons.org", b""
    )


def test_pdf_is_the_same_each_time(picture: Picture) -> None:
    pdf = draw(picture, "pdf")
    assert pdf.startswith(b"%PDF-")
    assert pdf == draw(picture, "pdf")
