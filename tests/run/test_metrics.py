"""metrics.jsonl: one line a step over the life of a run."""

import errno
import json
import os
import re
from pathlib import Path

import pytest

from toolkit.run import RunFolder
from toolkit.run.metrics import MetricsFile, MetricsLine


def _steps(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_lines_past_the_checkpoint_move_and_half_lines_too(tmp_path):
    file = MetricsFile(RunFolder(tmp_path), resumed_step=None)
    for step in range(6):
        file.append({"step": step})
    with (tmp_path / "metrics.jsonl").open("a") as cut:
        cut.write('{"step": 6, "lo')
    again = MetricsFile(RunFolder(tmp_path), resumed_step=3)
    again.append({"step": 4})
    assert _steps(tmp_path / "metrics.jsonl") == [0, 1, 2, 3, 4]
    superseded = (tmp_path / "metrics.superseded.jsonl").read_text().splitlines()
    assert superseded == ['{"step": 4}', '{"step": 5}', '{"step": 6, "lo']


def test_a_fresh_start_sets_every_line_of_an_earlier_try_aside(tmp_path):
    MetricsFile(RunFolder(tmp_path), resumed_step=None).append({"step": 0})
    MetricsFile(RunFolder(tmp_path), resumed_step=None).append({"step": 0})
    assert _steps(tmp_path / "metrics.jsonl") == [0]
    assert _steps(tmp_path / "metrics.superseded.jsonl") == [0]


def test_the_first_line_after_a_resume_is_a_line_of_its_own(tmp_path):
    file = MetricsFile(RunFolder(tmp_path), resumed_step=None)
    file.append({"step": 1})
    file.append({"step": 2})
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().removesuffix("\n"))
    MetricsFile(RunFolder(tmp_path), resumed_step=2).append({"step": 3})
    assert _steps(path) == [1, 2, 3]
    assert not (tmp_path / "metrics.superseded.jsonl").exists()


def test_a_line_that_the_disk_cannot_hold_is_not_there_in_part(tmp_path, monkeypatch):
    file = MetricsFile(RunFolder(tmp_path), resumed_step=None)
    file.append({"step": 1})

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            file.append({"step": 2})
    assert _steps(tmp_path / "metrics.jsonl") == [1]
    file.append({"step": 2})
    assert _steps(tmp_path / "metrics.jsonl") == [1, 2]


def test_the_documented_fields_are_those_of_a_line():
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    table = page.split("### metrics.jsonl")[1].split("The form of a line")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(MetricsLine.__annotations__)
