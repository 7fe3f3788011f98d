"""The planted faults (`make faults`; a sample in `.ci/run`) have to keep up with the source."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).resolve().parents[1] / "planted_faults.py"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planted_faults", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look their module up.
    spec.loader.exec_module(module)
    return module


def test_every_fault_fits_the_source() -> None:
    script = _script()
    assert script.misfits(script.FAULTS) == []


def test_a_fault_that_does_not_fit_is_reported() -> None:
    script = _script()
    fault = {"name": "f", "path": "toolkit/core/types.py", "tests": ("tests/core/no_such_test.py",)}
    found = script.misfits(
        [
            script.Fault(old="no such text", new="", **fault),
            script.Fault(old='"causal"', new='"causal', **fault),
        ]
    )
    assert ["0 times, not once" in found[0], "no tests/core" in found[1], "not Python" in found[2]] == [True] * 3


def test_a_sample_is_that_of_its_commit() -> None:
    script = _script()
    samples = [script.drawn(script.FAULTS, 10, commit=commit) for commit in ("one", "one", "two")]
    assert samples[0] == samples[1] != samples[2]
    assert [len({fault.name for fault in sample}) for sample in samples] == [10] * 3
