"""The paper's figures and tables from a grid of its shape, whose file names the axes."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.finished_grids import row, write_finished_grid
from toolkit.experiments.report.compare.levels import Level, model_level
from toolkit.experiments.report.compare.score_tables import score_tables
from toolkit.experiments.report.figures.label_pictures import label_pictures
from toolkit.experiments.report.figures.pictures import Picture, Series
from toolkit.experiments.report.read.results import read_results

AXES = ["size", "mask_ratio", "clm_share", "start", "budget_steps"]
CLM, MLM, BOTH = "clm", "mlm", "clm+mlm"


def _model(
    size: str, objective: str, budget: int, share: float | None, ratio: float | None, start: str = "random"
) -> dict[str, Any]:
    labels = {
        "size": size,
        "objective": objective,
        "budget_steps": 1000 * budget,
        "mask_ratio": ratio,
        "clm_share": share,
        "start": start,
    }
    return {name: value for name, value in labels.items() if value is not None}


# In the order of the scores: 0.50, 0.51, ...
MODELS = {
    "210m-clm": _model("210m", CLM, 42, 1.0, None),
    "210m-mlm20": _model("210m", MLM, 42, 0.0, 0.2),
    "210m-mlm40": _model("210m", MLM, 42, 0.0, 0.4),
    "610m-clm": _model("610m", CLM, 42, 1.0, None),
    "610m-mlm20": _model("610m", MLM, 42, 0.0, 0.2),
    "610m-mlm40": _model("610m", MLM, 42, 0.0, 0.4),
    "adapted20": _model("610m", BOTH, 42, 0.95, 0.2),
    "adapted40": _model("610m", BOTH, 42, 0.95, 0.4),
    "half": _model("610m", BOTH, 42, 0.5, 0.4),
    "clm-12k": _model("610m", CLM, 12, 1.0, None),
    "mlm-12k": _model("610m", MLM, 12, 0.0, 0.4),
    "half-12k": _model("610m", BOTH, 12, 0.5, 0.4),
    "from-clm-2k": _model("610m", MLM, 2, None, 0.4, "clm-42k step 42000"),
    "from-clm-22k": _model("610m", MLM, 22, None, 0.4, "clm-42k step 42000"),
    "from-mlm-2k": _model("610m", MLM, 2, None, 0.4, "mlm-42k step 42000"),
    "from-mlm-22k": _model("610m", MLM, 22, None, 0.4, "mlm-42k step 42000"),
}


@pytest.fixture(scope="module")
def level(tmp_path_factory: pytest.TempPathFactory) -> Level:
    rows = [
        row(name, "sst2", seed, 0.49 + number / 100 + seed / 50)
        for number, name in enumerate(MODELS)
        for seed in (0, 1)
    ]
    folder = write_finished_grid(tmp_path_factory.mktemp("paper") / "grid", rows, labels=MODELS, report={"x": AXES})
    return model_level(read_results([folder]))


@pytest.fixture(scope="module")
def pictures(level: Level) -> dict[str, Picture]:
    return {picture.name: picture for picture in label_pictures(level)}


def _points(series: Series) -> list[tuple[float, float]]:
    return [(point.x, round(point.y, 6)) for point in series.points]


def _lines(picture: Picture) -> dict[str, list[tuple[float, float]]]:
    (panel,) = picture.panels
    return {series.label: _points(series) for series in panel.series}


def test_2_score_by_size(pictures: dict[str, Picture]) -> None:
    """`210m` is a number, on a logarithmic axis that says `210m`."""
    picture = pictures["models-by-size"]
    assert (picture.is_log, picture.ticks) == (True, ((2.1e8, "210m"), (6.1e8, "610m")))
    assert _lines(picture) == {
        "start random": [(2.1e8, 50), (6.1e8, 53)],
        "start random, mask ratio 0.2": [(2.1e8, 51), (6.1e8, 54)],
        "start random, mask ratio 0.4": [(2.1e8, 52), (6.1e8, 55)],
        "others": [(6.1e8, score) for score in (62, 64, 60, 61, 59, 63, 65, 58, 56, 57)],
    }
    *lines, others = picture.panels[0].series
    assert (all(line.is_line for line in lines), others.is_line) == (True, False)


def test_3_score_by_mask_ratio_a_line_for_each_size(pictures: dict[str, Picture]) -> None:
    lines = _lines(pictures["models-by-mask-ratio"])
    assert len(lines.pop("others")) == 7
    assert lines == {
        "model size 210m, CLM share 0": [(0.2, 51), (0.4, 52)],
        "model size 610m, CLM share 0": [(0.2, 54), (0.4, 55)],
        "model size 610m, CLM share 0.95": [(0.2, 56), (0.4, 57)],
    }


def test_6_score_by_clm_share_a_line_for_each_budget(pictures: dict[str, Picture]) -> None:
    """Pure CLM models have no mask ratio, and end each line."""
    assert _lines(pictures["models-by-clm-share"]) == {
        "model size 210m, budget steps 42,000, mask ratio 0.2": [(0.0, 51), (1.0, 50)],
        "model size 210m, budget steps 42,000, mask ratio 0.4": [(0.0, 52), (1.0, 50)],
        "model size 610m, budget steps 12,000, mask ratio 0.4": [(0.0, 60), (0.5, 61), (1.0, 59)],
        "model size 610m, budget steps 42,000, mask ratio 0.2": [(0.0, 54), (0.95, 56), (1.0, 53)],
        "model size 610m, budget steps 42,000, mask ratio 0.4": [(0.0, 55), (0.5, 58), (0.95, 57), (1.0, 53)],
    }


def test_7_variation_with_the_mask_ratio(pictures: dict[str, Picture]) -> None:
    """Seed by seed 1 point between the ratios, so that the differences from the mean have no spread."""
    picture = pictures["models-variation-by-mask-ratio"]
    assert _lines(picture).keys() == _lines(pictures["models-by-mask-ratio"]).keys() - {"others"}
    assert list(_lines(picture).values()) == [[(0.2, -0.5), (0.4, 0.5)]] * 3
    point = picture.panels[0].series[0].points[0]
    assert (point.low, point.high) == pytest.approx((-0.5, -0.5), abs=1e-9)


def test_8_starts_side_by_side(pictures: dict[str, Picture]) -> None:
    """Two budgets at each start."""
    picture = pictures["models-by-start"]
    assert picture.ticks == ((0.0, "random"), (1.0, "clm-42k step 42000"), (2.0, "mlm-42k step 42000"))
    lines = _lines(picture)
    assert len(lines.pop("others")) == 12
    assert lines == {"budget steps 2,000": [(1.0, 62), (2.0, 64)], "budget steps 22,000": [(1.0, 63), (2.0, 65)]}
    assert not any(series.is_line for series in picture.panels[0].series)


def test_9_score_by_steps_of_continued_pretraining(pictures: dict[str, Picture]) -> None:
    lines = _lines(pictures["models-by-budget-steps"])
    assert lines["start clm-42k step 42000"] == [(2000, 62), (22_000, 63)]
    assert lines["start mlm-42k step 42000"] == [(2000, 64), (22_000, 65)]
    assert lines["CLM share 1, start random"] == [(12_000, 59), (42_000, 53)]


def test_checkpoints_by_step_a_line_for_each_run(tmp_path: Path) -> None:
    """Figures 4 and 10; behind a switch the share falls along the line."""
    kept = [(kind, share, step) for kind, share in ((CLM, 1.0), (MLM, 0.0)) for step in (1, 2, 40)]
    kept += [(BOTH, 1 / step, step) for step in (2, 40)]
    labels: dict[str, dict[str, Any]] = {
        f"{kind}-{step}k": {"run": kind, "clm_share": share, "training_step": 1000 * step}
        | {"training_tokens": 10**6 * step, "training_flops": (1 + share) * 1e15 * step}
        for kind, share, step in kept
    }
    rows = [row(name, "sst2", seed, 0.5) for name in labels for seed in (0, 1)]
    level = model_level(read_results([write_finished_grid(tmp_path, rows, labels=labels)]))
    by_name = {picture.name: picture for picture in label_pictures(level)}
    steps, flops = by_name["models-by-training-step"], by_name["models-by-training-flops"]
    whole = {kind: [(1000, 50), (2000, 50), (40_000, 50)] for kind in (CLM, MLM)}
    assert _lines(steps) == whole | {BOTH: [(2000, 50), (40_000, 50)]}
    assert _lines(flops)["clm"] == [(2e15, 50), (4e15, 50), (8e16, 50)]


def test_a_table_for_each_size_rows_by_objective_steps_ratio_and_share(level: Level) -> None:
    tables = {table.name: table for table in score_tables(level)}
    table = tables["models-sc-610m"]
    labels = ("objective", "start", "budget_steps", "mask_ratio", "clm_share")
    assert table.head == ("model", *labels, "sst2 (accuracy)")
    by_objective = {CLM: ["clm-12k", "610m-clm"], BOTH: ["half-12k", "adapted20", "half", "adapted40"]}
    continued = ["from-clm-2k", "from-clm-22k", "from-mlm-2k", "from-mlm-22k"]
    by_objective[MLM] = ["mlm-12k", "610m-mlm20", "610m-mlm40", *continued]
    # Objectives in the order of the grid file.
    assert [line[0] for line in table.rows] == [name for kind in (CLM, MLM, BOTH) for name in by_objective[kind]]
    assert [line[0] for line in tables["models-sc-210m"].rows] == ["210m-clm", "210m-mlm20", "210m-mlm40"]
