"""How the suite runs."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tests.conftest import LONGEST_FIRST, TESTS
from tests.support import costs


def test_files_that_come_first_exist() -> None:
    assert [name for name in LONGEST_FIRST if not (TESTS / name).is_file()] == []


@pytest.mark.parametrize(
    ("markers", "used", "fails"),
    [({}, 4.0, False), ({}, 6.0, True), ({"slow": ()}, 60.0, False), ({"costs": (30,)}, 20.0, False)],
)
def test_a_test_that_takes_long_fails_unless_it_says_so(monkeypatch, markers, used, fails) -> None:
    seconds = iter([100.0, 100.0 + used])
    monkeypatch.setattr(costs, "_cpu_seconds", lambda: next(seconds, 0.0))
    monkeypatch.setattr(costs, "_slowness", lambda: 1.0)
    item = SimpleNamespace(
        user_properties=[],
        get_closest_marker=lambda name: SimpleNamespace(args=markers[name]) if name in markers else None,
    )
    with pytest.raises(pytest.fail.Exception, match="Make it cheaper, or mark it") if fails else nullcontext():
        list(costs.measured(item, "call", costs.CALL_SECONDS))
    assert item.user_properties == [("call", used)]


def test_an_option_with_a_file_is_one_word() -> None:
    """Of two words pytest takes the file, once it is there, for a test, and reads no conftest that knows the option."""
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
    assert "--costs=" in makefile
    assert "--costs " not in makefile
