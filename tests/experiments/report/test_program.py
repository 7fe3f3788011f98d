"""`toolkit report` on hand-made folders: which files it writes, what is in them, and what it leaves alone."""

import csv
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.finished_grids import row, write_finished_grid
from toolkit.experiments.report import write_report

LABELS = {"mlm": {"clm_share": 0.0}, "half <b>": {"clm_share": 0.5}}


def _rows() -> list[dict[str, Any]]:
    return [
        row(model, task, seed, 0.5 + shift + seed / 100 + rate, kind=kind, rate=rate)
        for model, shift in (("mlm", 0.0), ("half <b>", 0.1))
        for task, kind in (("sst2", "sc"), ("nq", "ir"))
        for rate in (1e-5, 1e-4)
        for seed in (0, 1, 2)
    ]


def _grid(folder: Path) -> Path:
    write_finished_grid(folder, _rows(), labels=LABELS)
    cell = folder / "cells/mlm/sst2/lr-0.0001/seed-1"
    cell.mkdir(parents=True)
    (cell / "result.json").write_text("{}")
    return folder


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    return _grid(tmp_path / "grid")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that tests only read, beside its grid."""
    folder = tmp_path_factory.mktemp("written")
    return write_report([_grid(folder / "grid")], output=folder / "out")


def _files(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class _Page(HTMLParser):
    """Ids, links, everything that would be loaded, and elements that are left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if tag == "a" else []
        self.loaded += [given[key] or "" for key in ("src", "srcset", "data") if key in given]
        self.loaded += [given["href"] or ""] if tag == "link" else []
        if tag not in ("meta", "img", "br", "wbr", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_what_is_written_and_where(grid: Path, tmp_path: Path) -> None:
    """By default into `report` in the first folder; all else stays as it was."""
    before = _files(tmp_path)
    output = write_report([grid])
    assert output == grid / "report"
    after = _files(tmp_path)
    assert {name: after[name] for name in before} == before
    new = {name.removeprefix("grid/report/") for name in after.keys() - before.keys()}
    assert new == {
        "report.html",
        "tables/long.csv",
        "tables/scores.csv",
        "tables/tables.tex",
        *(
            f"tables/{name}.{ending}"
            for name in (
                *(f"models-{kind}" for kind in ("families", "sc", "ir")),
                "models-tests",
                "learning-rates",
            )
            for ending in ("md", "tex", "csv")
        ),
        *(
            f"figures/{name}.{ending}"
            for name in ("models-by-clm-share", "learning-rates", "learning-rate-spread")
            for ending in ("svg", "pdf")
        ),
    }


def test_a_second_report_is_the_same(grid: Path, tmp_path: Path) -> None:
    """All but the page's time and load, byte for byte."""
    first = _files(write_report([grid], output=tmp_path / "one"))
    second = _files(write_report([grid], output=tmp_path / "two"))
    del first["report.html"], second["report.html"]
    assert first == second


def test_the_page_loads_nothing_and_every_score_leads_to_its_runs(written: Path) -> None:
    text = (written / "report.html").read_text()
    page = _Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert page.loaded
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.loaded)
    assert not re.search(r"@import|url\(", text)
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert inside <= set(page.ids)
    pairs = {f"model-{model}-task-{task}" for model in (0, 1) for task in (0, 1)}
    assert pairs <= inside
    assert "<b>" not in text
    beside = [link for link in page.links if not link.startswith("#")]
    assert "../grid/cells/mlm/sst2/lr-0.0001/seed-1/result.json" in beside
    assert all((written / link).is_file() for link in beside)


def test_the_runs_behind_a_score_are_there(written: Path) -> None:
    """Of mlm on sst2: two rates, three seeds; the chosen rate's are marked."""
    text = (written / "report.html").read_text()
    table = text.partition('id="model-0-task-0"')[2].partition("</table>")[0]
    assert table.count("<tr class=chosen>") == 3
    assert table.count("<tr>") == 3 + 1
    assert table.count(">0.5101<") == 2


def test_several_grids_and_a_run_make_one_report(grid: Path, tmp_path: Path) -> None:
    other = write_finished_grid(tmp_path / "other", [row("mlm", "squad", seed, 0.3, kind="qa") for seed in (0, 1)])
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1, "objective": "clm", "loss": 9.0}\n')
    output = write_report([grid, other, run, grid], output=tmp_path / "out")
    lines = list(csv.DictReader(io.StringIO((output / "tables/scores.csv").read_text())))
    assert {(line["model"], line["task"]) for line in lines} == {
        *((model, task) for model in LABELS for task in ("sst2", "nq")),
        ("mlm", "squad"),
    }
    assert (output / "figures/losses.svg").is_file()


def test_a_label_that_no_model_has_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = {"x": ["clm_share", "clm_shares"]}
    output = write_report([write_finished_grid(tmp_path / "grid", _rows(), labels=LABELS, report=report)])
    told = "no model with scores has the label clm_shares, which [report] names"
    assert told in " ".join(capsys.readouterr().out.split())
    assert f"N{told[1:]}." in (output / "report.html").read_text()


def test_a_run_alone_has_its_curves(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1, "objective": "clm", "loss": 9.0}\n')
    output = write_report([run])
    assert set(_files(output)) == {"report.html", "figures/losses.svg", "figures/losses.pdf"}
    assert "1 pretraining run." in (output / "report.html").read_text()


def test_an_unfinished_model_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("a", "sst2", 0, 0.8), row("b", "sst2", 0, 0.9)]
    folder = write_finished_grid(tmp_path / "grid", rows, labels={"all failed": {}})
    selected = json.loads((folder / "selected.json").read_text())
    del selected["b"]
    (folder / "selected.json").write_text(json.dumps(selected))
    output = write_report([folder])
    told = "left out, as no learning rate has all its seeds finished: all failed on sst2, b on sst2"
    assert told in " ".join(capsys.readouterr().out.split())
    assert f"L{told[1:]}." in (output / "report.html").read_text()
    assert len((output / "tables/scores.csv").read_text().splitlines()) == 2
