"""Processes forked from the warm server end as Python's own do."""

import pytest

from tests.support.forked import run_python
from toolkit.testing import distributed


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("print(sys.argv[1:], os.getcwd(), os.environ['HUE'], here.PLACE)", (0, "['one'] {folder} blue found\n")),
        ("sys.exit(3)", (3, "")),
        ("sys.exit('no such hue')", (1, "no such hue\n")),
        ("os.write(2, b'last words'); os.kill(os.getpid(), 9)", (-9, "last words")),
    ],
)
def test_it_ends_as_python_does(tmp_path, code, ending):
    (tmp_path / "here.py").write_text("PLACE = 'found'")
    words = ["-c", f"import os, sys, here\n{code}", "one"]
    code, printed = ending
    assert run_python(words, folder=tmp_path, environment={"HUE": "blue"}) == (code, printed.format(folder=tmp_path))


def test_an_exception_is_shown_and_its_time_counts(tmp_path):
    before = distributed.cpu_seconds
    ended = run_python(["-c", "import time\nwhile time.process_time() < 0.2: pass\n1 / 0"], folder=tmp_path)
    assert ended.code == 1
    assert ended.output.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert distributed.cpu_seconds - before > 0.1
