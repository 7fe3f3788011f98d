"""A worker that is a command: what it runs, and what is known of it where it has ended or was lost."""

import os
import subprocess
import sys

import pytest

from tests.execution.test_local import RUNNER, ids_of, item
from toolkit.execution.worker import read_answer, write_work


def run(path):
    command = [sys.executable, "-m", "toolkit.execution.worker", path]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("word", "code", "answer"),
    [("work", 0, (None, True)), ("raise", 1, ("a file is broken", True)), ("die once", -9, None)],
)
def test_an_item_is_run_and_answered(tmp_path, word, code, answer):
    path = tmp_path / "work.pickle"
    write_work(path, RUNNER, item(tmp_path, word))
    assert read_answer(path) is None
    finished = run(path)
    assert (finished.returncode, read_answer(path)) == (code, answer)
    assert finished.stdout.startswith("--- item 0\n")
    assert len(ids_of(tmp_path).read_text().splitlines()) == 1


def test_lost_work_is_started_again(tmp_path):
    path = tmp_path / "work.pickle"
    write_work(path, RUNNER, item(tmp_path, "die once"))
    assert run(path).returncode == -9
    assert run(path).returncode == 0
    assert read_answer(path) == (None, True)
    write_work(path, RUNNER, item(tmp_path, "work"))
    assert read_answer(path) is None
