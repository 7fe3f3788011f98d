"""The planted faults (`make faults`; a sample in `.ci/run`) have to keep up with the source."""

from tests.planted_faults import FAULTS, drawn, misfits, read_faults


def test_every_fault_fits_the_source() -> None:
    assert misfits(FAULTS) == []


def test_a_fault_that_does_not_fit_is_reported() -> None:
    block = '@ toolkit/core/types.py tests/core/no_such_test.py\nf\n-no such text\nf\n-"causal"\n+"causal\n'
    found = misfits(read_faults(block))
    assert ["0 times, not once" in found[0], "no tests/core" in found[1], "not Python" in found[2]] == [True] * 3


def test_a_sample_is_that_of_its_commit() -> None:
    samples = [drawn(FAULTS, 10, commit=commit) for commit in ("one", "one", "two")]
    assert samples[0] == samples[1] != samples[2]
    assert [len({fault.name for fault in sample}) for sample in samples] == [10] * 3
