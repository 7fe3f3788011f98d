"""Requests to stop: while a run listens, and never after."""

import os
import signal

import pytest

from toolkit.parallel.launcher import STOP_FILE_VARIABLE
from toolkit.training.pretrain import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP])
def test_handlers_are_given_back(number):
    asked_before = []
    own = signal.signal(number, lambda number, frame: asked_before.append(number))
    try:
        with StopRequest() as is_stop_requested:
            assert not is_stop_requested()
            os.kill(os.getpid(), number)
            assert is_stop_requested()
        assert asked_before == []
        os.kill(os.getpid(), number)
        assert asked_before == [number]
    finally:
        signal.signal(number, own)


def test_an_ignored_hang_up_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as is_stop_requested:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not is_stop_requested()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_they_are_given_back_after_an_error_too():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyError), StopRequest():
        {}[signal.getsignal(signal.SIGTERM)]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_stop_file_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv(STOP_FILE_VARIABLE, str(tmp_path / "stop"))
    with StopRequest() as is_stop_requested:
        assert not is_stop_requested()
        (tmp_path / "stop").touch()
        assert is_stop_requested()
