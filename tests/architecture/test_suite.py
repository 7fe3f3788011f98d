"""How the suite runs."""

from tests.conftest import LONGEST_FIRST, TESTS


def test_files_that_come_first_exist() -> None:
    assert [name for name in LONGEST_FIRST if not (TESTS / name).is_file()] == []
