"""metrics.jsonl: one line a step over the life of a run."""

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support.checkpoints import states_of, write_checkpoint
from toolkit.run import RunFolder
from toolkit.run.metrics import MetricsFile, MetricsLine, history


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


def test_a_history_has_what_the_runs_before_did_up_to_where_they_were_left(tmp_path, caplog):
    """`b` left `a` behind step 2, whose line is there; `c` left `b` behind step 3, whose line is not."""
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    forks = {"a": None, "b": ("a", 2), "c": ("b", 3), "d": ("b", 4)}
    lines = {"a": (1, 2, 3), "b": (4,), "c": (4, 5), "d": (5,)}
    settings = {}
    for name, begun in forks.items():
        folder = RunFolder(tmp_path / name)
        if begun is not None:
            source = RunFolder(tmp_path / begun[0]).checkpoint(begun[1])
            settings[name] = {"fork": {"from": str(source), "step": begun[1]}}
        for step in (2, 3, 4):
            states = states_of(step)
            write_checkpoint(
                folder.checkpoints, step, states=states, tokenizer_folder=tokenizer, settings=settings.get(name, {})
            )
        file = MetricsFile(folder, resumed_step=None)
        if begun is not None:
            file.append({"step": begun[1], "eval_loss": {"clm": 1.0}})
        for step in lines[name]:
            file.append({"step": step, "loss": 1.0})

    def steps(name, begun=None):
        found = history(RunFolder(tmp_path / name), begun or settings.get(name, {}))
        return [(line["step"], "loss" in line) for line in found.lines], found.is_whole

    assert steps("a") == ([(1, True), (2, True), (3, True)], True)
    assert steps("b") == ([(1, True), (2, True), (2, False), (4, True)], True)
    assert steps("c") == ([(1, True), (2, True), (2, False), (3, False), (4, True), (5, True)], False)
    # Moved together, as below a study's folder.
    (tmp_path / "moved").mkdir()
    for name in settings.keys() | {"a"}:
        (tmp_path / name).rename(tmp_path / "moved" / name)
    assert steps("moved/b", settings["b"]) == ([(1, True), (2, True), (2, False), (4, True)], True)
    shutil.rmtree(tmp_path / "moved/a")
    for _ in range(2):
        assert steps("moved/b", settings["b"]) == ([(2, False), (4, True)], False)
        # Its own beginning is there, and that one's is not.
        assert steps("moved/d", settings["d"]) == ([(2, False), (4, True), (4, False), (5, True)], False)
    told = caplog.messages[0]
    assert f"moved/b goes on from {tmp_path}/a/checkpoints/step-00000002, which is neither there nor beside it" in told


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
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    table = page.split("### metrics.jsonl")[1].split("The form of a line")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(MetricsLine.__annotations__)
