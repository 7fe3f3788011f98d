"""The contract, over both shipped schedulers."""

from typing import ClassVar

from toolkit.objectives.schedulers import KINDS
from toolkit.testing.contracts import SchedulerContract


class TestPhases(SchedulerContract):
    kind = "phases"


class TestAlternate(SchedulerContract):
    kind = "alternate"
    settings: ClassVar = {"cycles": 7}


class TestAlternateWithSteps(SchedulerContract):
    kind = "alternate"
    settings: ClassVar = {"cycles": 4}
    entries = ({"objective": "clm", "steps": 20}, {"objective": "mlm", "tokens": 230})


def test_phases_and_alternate_are_registered() -> None:
    assert KINDS.known() == ("alternate", "phases")
