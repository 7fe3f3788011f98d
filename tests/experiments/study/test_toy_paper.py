"""The shipped study `paper` in miniature, from its first step to its report."""

import json

import pytest

from tests.experiments.study.test_plan import Study, train
from tests.support.toy_paper import write_toy_paper
from toolkit.experiments.report import write_report
from toolkit.experiments.study.program import run_study, study_json

pytestmark = pytest.mark.slow

ON_THE_WAY = (1, 2, 5, 10, 20, 40)


def test_the_paper_in_miniature(tmp_path):
    """Trained in this process; a command trains each piece in its own."""
    source = str(write_toy_paper(tmp_path, rates=[1e-2], seeds=[0], of_family=1))
    counts = json.loads(study_json(source))["grid"]
    assert counts == {"models": 50, "tasks": 4, "cells": 200, "trainings": 200}
    pieces = train(Study(source))
    assert sum(until - first for _, first, until in pieces) == 812
    assert run_study(source, report=lambda folder: write_report([folder])) == 0
    results = [json.loads(line) for line in (tmp_path / "study/grid/results.jsonl").read_text().splitlines()]
    assert len(results) == 200
    models = {row["model"] for row in results}
    assert {name for name in models if "@" in name} == {
        f"test-{objective}-42@{step}" for objective in ("clm", "mlm40") for step in ON_THE_WAY
    }
    assert len(models) == 50
    scores = {(row["model"], row["task"]): row["test"] for row in results}
    for task in ("SST-2", "SQuAD", "MSMARCO"):
        assert len({json.dumps(scores[model, task]) for model in models}) > 1, task
    report = tmp_path / "study" / "report"
    assert (report / "report.html").is_file()
    figures = {path.stem for path in (report / "figures").glob("*.svg")}
    assert figures >= {"study", "losses"} | {
        f"models-by-{label}"
        for label in ("size", "clm-share", "mask-ratio", "budget-steps", "training-step", "training-flops")
    }
