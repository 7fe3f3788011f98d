"""The tables of docs/performance.md are those of the kept results."""

import re
from argparse import Namespace
from runpy import run_path

import pytest

from tests.support.sources import ROOT


@pytest.fixture
def program(monkeypatch):
    """What benchmarks/performance.py defines."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return run_path(str(ROOT / "benchmarks" / "performance.py"))


def test_the_page_is_that_of_the_kept_results(program):
    assert (ROOT / "docs" / "performance.md").read_text(encoding="utf-8") == program["page"]()


def test_what_is_run_is_there_and_takes_its_arguments(program):
    """All required options of each benchmark, and none that it does not have."""
    given = {"finetuning": ("model", "train", "test"), "preprocess": ("text", "tokenizer", "python")}
    run = dict(program["benchmarks"](Namespace(**given)))
    assert list(run) == ["feeding", "training_step", "training_sweeps", "first_batch", "finetuning", "preprocess"]
    for name, arguments in run.items():
        source = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
        options = set(re.findall(r'add_argument\("(--[a-z-]+)"', source))
        required = set(re.findall(r'add_argument\("(--[a-z-]+)"[^\n]*required=True', source))
        assert required <= set(arguments[::2]) <= options, name
