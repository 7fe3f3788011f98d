"""Every error of the table: exit code 2, one message that says what was asked, what was found and what to do."""

import errno
import importlib.util
import os
import re
from pathlib import Path

import pytest

from tests.cli.errors import CASES, ELSEWHERE, LAUNCHED
from tests.cli.place import Case, Place, call, call_apart
from toolkit.cli.exit_codes import guarded

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with Place(tmp_path_factory.mktemp("place")) as place:
        yield place


def _check(case: Case, place: Place, code: object, said: str) -> None:
    assert code == 2, said
    assert len(re.findall("^error: ", said, re.MULTILINE | re.IGNORECASE)) == 1, said
    assert "Traceback" not in said
    for piece in (*case.found, case.remedy):
        assert place.fill(piece) in said


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refused_in_one_message(case, place):
    if "log.wandb=true" in case.words and importlib.util.find_spec("wandb") is not None:
        pytest.skip("the package is installed")
    _check(case, place, *call(case, place))


@pytest.mark.slow
@pytest.mark.parametrize("case", LAUNCHED, ids=lambda case: case.name)
def test_refused_by_the_ranks_in_one_message(case, place):
    _check(case, place, *call_apart(case, place))


@pytest.mark.parametrize(("file", "test"), ELSEWHERE)
def test_what_one_command_line_cannot_show_is_tested(file, test):
    assert f"\ndef {test}(" in (TESTS / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.ENOTDIR])
@pytest.mark.parametrize("path", ["some/file", None])
def test_what_the_system_refuses_is_no_bug(capsys, number, path):
    def program():
        raise OSError(number, os.strerror(number), path)

    assert guarded(program) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: could not read or write {path or 'a file'}: {os.strerror(number)}. ")
    assert said.count(".") >= 2


def test_another_error_of_the_system_is_a_bug(capsys):
    def program():
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    assert guarded(program) == 1
    assert "Traceback" in capsys.readouterr().err
