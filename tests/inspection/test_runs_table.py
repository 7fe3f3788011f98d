"""`toolkit inspect` of a folder of runs, which are written here by the project's own writers."""

import io
import os
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.support.checkpoints import states_of, write_checkpoint
from tests.support.runs import write_run
from toolkit.inspection import runs_table
from toolkit.run import RunFolder, load_run
from toolkit.run.load import to_toml
from toolkit.run.metrics import MetricsFile, last_trained_line


def save(folder, step):
    folder.tokenizer.mkdir()
    write_checkpoint(folder.checkpoints, step, states=states_of(step), tokenizer_folder=folder.tokenizer)
    folder.tokenizer.rmdir()


@pytest.fixture
def make(tmp_path):
    """A run of 20 steps of 512 positions: `make(name, line, saved)` leaves it with a newest line and checkpoint."""
    run_file = str(write_run(tmp_path))

    def write(name, *overrides, line=None, saved=None):
        folder = RunFolder(tmp_path / "runs" / name)
        folder.path.mkdir(parents=True)
        folder.write(folder.settings_file, to_toml(load_run(run_file, [f"run.dir={folder.path}", *overrides])))
        if line is not None:
            metrics = MetricsFile(folder, resumed_step=None)
            metrics.append({"step": 0, "phase": 0, "tokens": 0, "eval_loss": {"clm": 5.0}})
            metrics.append({"step": line, "loss": 4.25, "tokens": 256 * line, "tokens_per_second": 64.0})
        if saved is not None:
            save(folder, saved)
        return folder

    return write


@pytest.fixture
def inspect(monkeypatch, toolkit):
    # The folders of tests have longer names where several processes run them.
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words):
        code, out, err = toolkit("inspect", *words)
        return code, [" ".join(line.split()) for line in out.splitlines()], err

    return call


def test_a_row_for_each_run_below(inspect, make, tmp_path, monkeypatch):
    root, now = tmp_path / "runs", int(time.time())
    monkeypatch.setattr(time, "time", lambda: now)
    make("new")
    make("a/done", line=20, saved=20)
    make("a/done/tail", line=8, saved=10)
    make("a/broken").settings_file.write_text("[run\n")
    make("killed", line=15, saved=10)
    make("unsaved", line=3)
    busy, starting = make("busy", line=5), make("starting")
    # Inside of a run, checkpoints hold no runs.
    make("a/done/checkpoints/copy", line=1)
    for file in root.rglob("metrics.jsonl"):
        os.utime(file, times=(now - 3723, now - 3723))
    with ExitStack() as held:
        held.enter_context(busy.locked())
        held.enter_context(starting.reserved())
        code, lines, err = inspect(root)
    assert (code, err) == (0, "")
    counts = "1 run.toml cannot be read, 1 finished, 1 stopped, 2 training, 2 failed, 1 not started"
    assert lines[:2] == [f"Runs below {root}: {counts}", "run step state loss tokens/s time left newest line"]
    # Half of the positions are filled: 15 steps of 256 tokens, 64 a second.
    assert lines[2:] == [
        "a/broken 0 run.toml cannot be read - - - -",
        "a/done 20 of 20 (100%) finished 4.2500 64 - 1:02:03 ago",
        "a/done/tail 10 of 20 (50%) stopped 4.2500 64 - 1:02:03 ago",
        "busy 5 of 20 (25%) training 4.2500 64 0:01:00 1:02:03 ago",
        "killed 15 of 20 (75%) failed 4.2500 64 - 1:02:03 ago",
        "new 0 of 20 (0%) not started - - - -",
        "starting 0 of 20 (0%) training - - - -",
        "unsaved 3 of 20 (15%) failed 4.2500 64 - 1:02:03 ago",
    ]
    assert [line for line in inspect(root)[1] if line.startswith("busy")] == [
        lines[5].replace("training 4.2500 64 0:01:00", "failed 4.2500 64 -")
    ]


@pytest.mark.parametrize(
    ("name", "read", "names_file"),
    [("metrics.jsonl", "open", True), ("metrics.jsonl", "open", False), ("checkpoints", "iterdir", True)],
)
def test_a_run_that_cannot_be_read_hides_no_other(inspect, make, tmp_path, monkeypatch, name, read, names_file):
    """A read that fails behind the opening, as of a stale handle on NFS, names no file."""

    def refuse(path, *given, **named):
        if path == theirs / name:
            raise OSError(116, "Stale file handle", *[str(path)] * names_file)
        return real(path, *given, **named)

    theirs, real = make("theirs", line=5, saved=10).path, getattr(Path, read)
    make("odd").metrics_file.write_text('{"step": 5, "loss": "low"}\n{"step": null}\n["step"]\n7\n')
    make("ours", line=5)
    monkeypatch.setattr(Path, read, refuse)
    code, lines, err = inspect(tmp_path / "runs")
    assert (code, err) == (0, "")
    assert [line.split(" - ")[0] for line in lines[2:]] == [
        "odd 0 of 20 (0%) not started",
        "ours 5 of 20 (25%) failed 4.2500 64",
        f"theirs 0 {name} cannot be read",
    ]


def test_a_branch_begins_where_it_leaves_its_parent(inspect, make, tmp_path):
    make("branch", "fork={from='there', step=7}")
    assert inspect(tmp_path / "runs")[1][2] == "branch 7 of 20 (35%) not started - - - -"


def test_tokens_of_its_parent_make_no_branch_slower(inspect, make, tmp_path):
    """They are in its lines, and are more than the positions of its own steps."""
    folder = make("branch")
    folder.metrics_file.write_text('{"step": 6, "loss": 4.0, "tokens": 1000000, "tokens_per_second": 64.0}\n')
    with folder.locked():
        assert "training 4.0000 64 0:01:52" in inspect(tmp_path / "runs")[1][2]


def test_a_linked_run_is_a_run(inspect, make, tmp_path):
    make("own/a", line=5)
    elsewhere = make("elsewhere", line=7).path
    root = tmp_path / "runs/own"
    (root / "b").symlink_to(elsewhere)
    (root / "loop").symlink_to(root)
    (root / "nowhere").symlink_to(tmp_path / "nowhere")
    assert [line.split()[:2] for line in inspect(root)[1][2:]] == [["a", "5"], ["b", "7"]]


def test_a_folder_that_is_a_run_is_shown_as_one(inspect, make):
    folder = make("one", line=5)
    make("one/below")
    assert inspect(folder.path)[1][0] == f"run {folder.path}"


@pytest.mark.parametrize("word", ["--watch", "--set"])
def test_options_of_other_folders_are_refused(inspect, make, word):
    folder = make("one")
    place, words = (folder.path, [word]) if word == "--watch" else (folder.path.parent, [word, "data.windows=blocks"])
    code, _, err = inspect(place, *words)
    assert code == 2
    assert f"and {place} {'is a run' if word == '--watch' else 'holds runs'}" in err
    assert "Leave it out" in err


def test_runs_of_any_name_are_runs(inspect, make, tmp_path):
    """Names that mean something in other folders."""
    for name in ("unfinished", "cells"):
        make(name, line=5)
    (tmp_path / "runs" / "grid").mkdir()
    code, lines, _ = inspect(tmp_path / "runs")
    assert (code, [line.split()[0] for line in lines if "/20" in line or " 5 " in line]) == (0, ["cells", "unfinished"])


def test_a_table_is_watched_until_ctrl_c(inspect, make, monkeypatch, tmp_path):
    def look(seconds):
        if folder.checkpoints.exists():
            raise KeyboardInterrupt
        save(folder, 20)

    folder = make("one", line=20)
    # Another thread may sleep, and has no table.
    monkeypatch.setattr(runs_table, "time", SimpleNamespace(sleep=look, time=time.time))
    code, lines, err = inspect(tmp_path / "runs", "--watch")
    assert (code, err) == (130, "")
    assert [line.split()[5] for line in lines if line.startswith("one ")] == ["failed", "finished"]

    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(runs_table, "console", lambda: screen)
    shutil.rmtree(folder.checkpoints)
    with pytest.raises(KeyboardInterrupt):
        runs_table.watch_runs(tmp_path / "runs")
    printed = screen.file.getvalue()
    assert printed.index("failed") < printed.index("finished")
    assert "\x1b[?25l" in printed


@pytest.mark.parametrize("tail_bytes", [7, 1 << 14])
def test_the_newest_line_is_read_from_the_end(monkeypatch, make, tail_bytes):
    monkeypatch.setattr("toolkit.run.metrics._TAIL_BYTES", tail_bytes)
    if tail_bytes > 7:
        monkeypatch.setattr("toolkit.run.metrics._lines_of", lambda path: [])
    folder = make("one", line=7)
    with folder.metrics_file.open("ab") as file:
        file.write(b'{"step": 8, "eval_loss": {"clm": 4.0}}\n\xff\xfe no line\n{"step": 9, "lo')
    assert last_trained_line(folder)["step"] == 7
    folder.metrics_file.write_text('{"step": 0, "eval_loss": {"clm": 4.0}}\n')
    assert last_trained_line(folder) is None
    folder.metrics_file.write_text("")
    assert last_trained_line(folder) is None
    folder.metrics_file.unlink()
    assert last_trained_line(folder) is None
