"""Schedulers: what the two shipped kinds make of a list, and what is said of one that breaks."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.packages import lay_down_entry_points
from toolkit.core.errors import SettingsError
from toolkit.objectives.phase_settings import PhaseSettings
from toolkit.objectives.schedule import Schedule
from toolkit.objectives.schedulers import declare

_CLM, _MLM = {"objective": "clm", "steps": 3}, {"objective": "mlm", "tokens": 640}

_REPEATING = '''
"""A scheduler from outside, in one file."""

from toolkit.objectives import PhaseSettings, Settings


class Repeating:
    """Whatever the test wants."""

    name = "repeating"

    class Settings(Settings):
        what: str = "twice"

    def phases(self, entries, settings, total_steps):
        if settings.what == "raise":
            raise RuntimeError("no such moon")
        entries[0]["objective"] = "mlm"
        return {
            "twice": [*entries, *entries],
            "objects": [PhaseSettings(**entry) for entry in entries],
            "budget": [{"objective": "clm", "steps": total_steps}],
            "none": None,
            "empty": [],
            "words": ["clm"],
            "lengthless": [entries[0], {"objective": "clm"}],
            "endless": [{"objective": "clm", "steps": -1}],
        }[settings.what]
'''


@pytest.fixture
def repeating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "moon_phases", raising=False)
    (tmp_path / "moon_phases.py").write_text(_REPEATING)
    lay_down_entry_points(tmp_path, "moon", {"toolkit.schedulers": {"repeating": "moon_phases:Repeating"}})


def _phases(entries: list[dict[str, Any]], total_steps: int | None = None, **given: Any) -> list[dict[str, Any]]:
    return declare(given).phases(entries, total_steps)


def test_the_list_as_it_stands_is_the_default() -> None:
    assert _phases([_CLM, _MLM]) == _phases([_CLM, _MLM], kind="phases") == [_CLM, _MLM]


def test_alternate_repeats_steps_and_tokens() -> None:
    assert _phases([_CLM, _MLM], kind="alternate", cycles=3) == [_CLM, _MLM, _CLM, _MLM, _CLM, _MLM]


def test_alternate_divides_fractions_so_that_the_budget_stays() -> None:
    entries = [{"objective": "clm", "fraction": 0.25}, {"objective": "mlm", "fraction": 0.75}]
    phases = _phases(entries, 120, kind="alternate", cycles=3)
    assert [phase["fraction"] for phase in phases] == [0.25 / 3, 0.25] * 3
    settings = [PhaseSettings(**phase) for phase in phases]
    schedule = Schedule.resolve(settings, total_steps=120, global_batch_rows=1, sequence_length=1)
    assert [phase.stop for phase in schedule.phases] == [10, 40, 50, 80, 90, 120]


@pytest.mark.parametrize("cycles", [0, -1, 1.5, "2", None])
def test_alternate_needs_a_whole_number_of_cycles(cycles: object) -> None:
    given = {} if cycles is None else {"cycles": cycles}
    with pytest.raises(SettingsError, match=r"scheduler\.cycles(: expected|.*is required)"):
        declare({"kind": "alternate", **given})


def test_a_kind_is_a_string_and_has_its_own_keys() -> None:
    with pytest.raises(SettingsError, match=r"scheduler\.kind: expected a string, got 4"):
        declare({"kind": 4})
    with pytest.raises(SettingsError, match=r"unknown key 'scheduler\.cycle'"):
        declare({"kind": "alternate", "cycles": 2, "cycle": 2})


@pytest.mark.usefixtures("repeating")
def test_a_plugin_gets_copies_of_the_entries_and_the_budget() -> None:
    entries = [dict(_CLM)]
    twice = [{"objective": "mlm", "steps": 3}] * 2
    assert _phases(entries, kind="repeating") == twice
    assert entries == [_CLM]
    assert _phases(entries, kind="repeating", what="objects") == twice[:1]
    assert _phases(entries, 40, kind="repeating", what="budget") == [{"objective": "clm", "steps": 40}]


@pytest.mark.usefixtures("repeating")
@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("raise", r"failed: RuntimeError: no such moon"),
        ("none", r"returned None, expected a list of at least one phase"),
        ("empty", r"returned \[\], expected a list of at least one phase"),
        ("words", r"returned an invalid phase: invalid value for schedule\.0: expected a table, got 'clm'"),
        ("lengthless", r"returned an invalid phase: invalid value for schedule\.1: the phase 'clm' has no length"),
        ("endless", r"returned an invalid phase: invalid value for schedule\.0\.steps: expected a value above 0"),
    ],
)
def test_a_plugin_that_breaks_is_named(what: str, found: str) -> None:
    with pytest.raises(SettingsError, match=rf"the scheduler 'repeating' \(moon_phases:Repeating\) {found}") as caught:
        _phases([dict(_CLM)], kind="repeating", what=what)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", [np.float32(1e5), None, [{"path": Path("a")}]], ids=["numpy", "none", "nested"])
def test_what_a_run_file_cannot_say_is_refused(value: object) -> None:
    """Keys of other tables are looked at by others, after the plugin has returned them."""
    PhaseSettings(objective="clm", steps=1, model={"rope_theta": np.float64(1e5), "rope_scaling": {"factor": 2}})
    with pytest.raises(
        ValueError, match=r"model of the phase 'clm' holds .*, which a run file cannot say\. Give strings"
    ):
        PhaseSettings(objective="clm", steps=1, model={"rope_theta": value})


def test_a_class_that_breaks_the_contract_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "half_phases.py").write_text("class Half:\n    name = 'half'\n")
    lay_down_entry_points(tmp_path, "half", {"toolkit.schedulers": {"half": "half_phases:Half"}})
    with pytest.raises(SettingsError, match=r"the scheduler 'half' from package half 1\.5") as caught:
        declare({"kind": "half"})
    assert "`Settings` is not a pydantic class; `phases` is missing" in str(caught.value)
