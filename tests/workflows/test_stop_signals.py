"""Signals that come before a run has ranks."""

import os
import signal

import pytest

from toolkit.workflows.stop_signals import EarlyStop

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@pytest.mark.parametrize("number", _STOP_SIGNALS)
def test_the_first_signal_is_remembered_and_a_second_one_ends_the_process(number):
    before = [signal.getsignal(other) for other in _STOP_SIGNALS]
    with EarlyStop() as is_stopped:
        assert not is_stopped()
        os.kill(os.getpid(), number)
        assert is_stopped()
        assert [signal.getsignal(other) for other in _STOP_SIGNALS] == [signal.SIG_DFL, signal.SIG_DFL]
    assert [signal.getsignal(other) for other in _STOP_SIGNALS] == before


def test_a_closed_terminal_asks_once_however_often_it_says_so(default_sighup):
    with EarlyStop() as is_stopped:
        os.kill(os.getpid(), signal.SIGHUP)
        assert is_stopped()
        assert signal.SIG_DFL not in (signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM))
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_under_nohup_a_closed_terminal_asks_nothing(default_sighup):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with EarlyStop() as is_stopped:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not is_stopped()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.fixture
def default_sighup():
    """Whatever the suite was started with."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
