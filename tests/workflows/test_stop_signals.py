"""Signals that come before a run has ranks."""

import os
import signal

import pytest

from toolkit.workflows.stop_signals import STOP_SIGNALS, EarlyStop


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_is_remembered_and_a_second_one_ends_the_process(number):
    before = [signal.getsignal(other) for other in STOP_SIGNALS]
    with EarlyStop() as is_stopped:
        assert not is_stopped()
        os.kill(os.getpid(), number)
        assert is_stopped()
        assert [signal.getsignal(other) for other in STOP_SIGNALS] == [signal.SIG_DFL, signal.SIG_DFL]
    assert [signal.getsignal(other) for other in STOP_SIGNALS] == before
