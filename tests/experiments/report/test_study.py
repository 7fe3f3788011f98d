"""A study in a report: its tree as a picture, its models as a table, and the losses of all its runs."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.experiments.study.test_plan import write_study
from tests.support.finished_grids import row, write_finished_grid
from tests.support.runs import write_run
from toolkit.core.errors import UserError
from toolkit.experiments.report import write_report
from toolkit.experiments.report.compare.score_tables import study_table
from toolkit.experiments.report.figures.drawing import draw
from toolkit.experiments.report.figures.pictures import Point, study_picture
from toolkit.experiments.report.read.study import StudySegment, read_study
from toolkit.experiments.study.program import study_json

TRUNK, LEAF, ALONE = "run-clm-8", "run-clm-3-mlm40-8", "run-mlm40-6"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Three models, of which the trunk has eight logged steps, its leaf two, and the third none."""
    write_run(tmp_path, phase_steps=4)
    folder = tmp_path / "study"
    folder.mkdir()
    source = write_study(tmp_path, ["clm 8", "clm 3 + mlm 5", "mlm 6"])
    (folder / "study.json").write_text(study_json(source))
    for name, steps in ((TRUNK, range(1, 9)), (LEAF, (4, 5)), (ALONE, ())):
        run = folder / "runs" / name
        run.mkdir(parents=True)
        # Of 512 tokens a step, in half an hour.
        lines = [{"step": step, "loss": 4.0, "tokens": 512 * step, "tokens_per_second": 512 / 1800} for step in steps]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_what_a_plan_tells(study: Path) -> None:
    trunk, leaf, alone = read_study(study)
    assert (trunk.name, leaf.name, alone.name) == (TRUNK, LEAF, ALONE)
    assert trunk.segments == (StudySegment("clm", 0, 6, decays=False), StudySegment("clm", 6, 8, decays=True))
    assert leaf.segments == (StudySegment("mlm", 3, 6, decays=False), StudySegment("mlm", 6, 8, decays=True))
    assert (leaf.giver, leaf.fork, leaf.tokens, leaf.kept) == (TRUNK, 3, 8 * 512, (8,))
    assert trunk.kept == (3, 8)
    # The leaf has made steps 4 and 5.
    assert (trunk.hours, leaf.hours, alone.hours) == (4.0, 1.0, None)
    (study / "study.json").write_text('{"models": [{"name": "a"}]}')
    with pytest.raises(UserError, match=r"could not read .*study\.json: total_steps is missing; it is required\. The"):
        read_study(study)


def test_the_tree_as_a_picture(study: Path) -> None:
    picture = study_picture(read_study(study), name="study", title="Study")
    fork, *segments, kept = picture.panels[0].series
    assert fork.points == (Point(3, 0.0), Point(3, -1.0))
    assert [(line.label, line.points[0].x, line.points[1].x, line.points[0].y) for line in segments] == [
        ("clm", 0, 6, 0.0),
        ("clm", 6, 8, 0.0),
        ("mlm", 3, 6, -1.0),
        ("mlm", 6, 8, -1.0),
        ("mlm", 0, 4, -2.0),
        ("mlm", 4, 6, -2.0),
    ]
    stable, decay = segments[0].width, segments[1].width
    assert stable is not None
    assert decay is not None
    assert stable > 2 * decay
    assert {line.color for line in segments if line.label == "clm"} == {segments[0].color} != {segments[2].color}
    assert [(point.x, point.y) for point in kept.points] == [(3, 0.0), (8, 0.0), (8, -1.0), (6, -2.0)]
    texts = {text.text for text in ET.fromstring(draw(picture, "svg")).iter("{http://www.w3.org/2000/svg}text")}
    assert {TRUNK, LEAF, ALONE, "clm", "mlm", "checkpoint", "training step"} <= texts


def test_a_row_of_its_own_for_each_name_however_many(study: Path) -> None:
    def height(number: int) -> float:
        models = [*read_study(study)] * number
        named = [model.model_copy(update={"name": f"{model.name}-{at}"}) for at, model in enumerate(models)]
        svg = ET.fromstring(draw(study_picture(named, name="study", title="Study"), "svg"))
        return float(svg.get("height", "").removesuffix("pt"))

    # A name of 7 points, and some air.
    assert (height(13) - height(1)) / 36 > 10


def test_a_studys_folder_is_its_tree_its_grid_and_all_its_runs(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(model, "sst2", seed, 0.5 + seed / 100) for model in (TRUNK, LEAF) for seed in (0, 1)]
    # The grid of an earlier file is not the one that is declared now.
    write_finished_grid(study / "grid", rows)
    write_finished_grid(study / "scores", rows)
    declared = f'[study]\ndir = "{study}"\n[grid]\ndir = "{study}/scores"\n'
    (study / "study.toml").write_text(declared)
    output = write_report([study])
    assert output == study / "report"
    assert "no loss curve, as no step is logged: run-mlm40-6" in capsys.readouterr().out
    page = (output / "report.html").read_text()
    assert f"No loss curve, as no step is logged: {ALONE}." in page
    assert '<h2 id="study">Study</h2>' in page
    table = (output / "tables/study.md").read_text().splitlines()
    assert table[2].startswith("| model | forked from | total steps | own steps | tokens (billions) | hours | Sequence")
    assert table[5].startswith(f"| {LEAF} | {TRUNK} at 3 | 8 | 5 | 4.096e-06 | 1.00 | ")
    assert "50.50" in table[5]
    assert {path.name for path in (output / "figures").iterdir()} >= {"study.svg", "study.pdf", "losses.svg"}


def test_without_a_grid_there_are_no_columns_of_scores(study: Path) -> None:
    assert study_table(read_study(study), None, name="study", title="Study").head[-1] == "hours"


def test_runs_without_a_logged_step_are_left_out_beside_others(study: Path, tmp_path: Path) -> None:
    output = write_report([study / "runs" / ALONE, study / "runs" / TRUNK], output=tmp_path / "out")
    assert "1 pretraining run." in (output / "report.html").read_text()
    with pytest.raises(UserError, match="has no logged step"):
        write_report([study / "runs" / ALONE], output=tmp_path / "none")
