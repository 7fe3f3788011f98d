"""Numbers in the environment, checked before torch and DeepSpeed read them."""

import os

import pytest

from toolkit.cli.exit_codes import guarded
from toolkit.core.environment import check_numbers, given_threads
from toolkit.core.errors import SettingsError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("OMP_NUM_THREADS", value) for value in ("abc", "0", "-1", "1.5", ",2", "65537", "1_0")],
        *[("DEEPSPEED_TIMEOUT", value) for value in ("0.2", "abc", "0", "10 minutes", "1" * 30)],
        *[(name, "abc") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE")],
    ],
)
def test_what_is_no_number_is_named(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"^the environment has {name}={value}; expected a whole number from "):
        check_numbers()


@pytest.mark.parametrize(("value", "threads"), [("4", 4), ("4,2", 4), (" 16 ", 16), ("", None), (None, None)])
def test_of_a_list_of_threads_the_first_number_counts(value, threads, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if value is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
    check_numbers()
    assert given_threads() == threads


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch):
    """DeepSpeed would parse it."""
    monkeypatch.setenv("DEEPSPEED_TIMEOUT", "")
    check_numbers()
    assert "DEEPSPEED_TIMEOUT" not in os.environ


@pytest.mark.parametrize(("local_rank", "times"), [("0", 1), ("1", 0)])
def test_it_is_told_once_on_each_machine_and_nothing_begins(local_rank, times, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setenv("DEEPSPEED_TIMEOUT", "0.2")
    assert guarded(lambda: pytest.fail("it began")) == 2
    assert capsys.readouterr().err.count("error: the environment has DEEPSPEED_TIMEOUT=0.2") == times
