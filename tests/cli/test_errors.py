"""Every error of the table: exit code 2, one message that says what was asked, what was found and what to do."""

import importlib.util

import pytest

from tests.cli.errors import CASES, LAUNCHED, Case, Place, call, call_apart


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("place"))


def _check(case: Case, place: Place, code: object, said: str) -> None:
    assert code == 2, said
    assert said.count("error: ") == 1, said
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


def test_an_unknown_command_exits_with_2(place):
    code, said = call(Case(("trian",), (), ""), place)
    assert code == 2
    assert "trian" in said
