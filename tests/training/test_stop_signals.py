"""Signals that come before a run has ranks."""

import os
import signal
from types import SimpleNamespace

import pytest

from tests.support.forked import run_python
from toolkit.core import signals
from toolkit.core.signals import Requests
from toolkit.launching.stop_signals import EarlyStop

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)


@pytest.mark.parametrize("number", _STOP_SIGNALS)
def test_the_first_signal_is_remembered_and_a_later_one_ends_the_process(number, tmp_path):
    before = [signal.getsignal(other) for other in _STOP_SIGNALS]
    with EarlyStop() as is_stopped:
        assert not is_stopped()
        # Of one request, as batch systems send them.
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_stopped()
    assert [signal.getsignal(other) for other in _STOP_SIGNALS] == before
    code = f"""
import os
from toolkit.core import signals
from toolkit.launching.stop_signals import EarlyStop
signals._SECONDS_OF_A_REQUEST = 0.0
with EarlyStop():
    os.kill(os.getpid(), {int(number)})
    print("remembered", flush=True)
    os.kill(os.getpid(), {int(signal.SIGTERM)})
    print("still here", flush=True)
"""
    assert run_python(["-c", code], folder=tmp_path) == (-signal.SIGTERM, "remembered\n")


def test_requests_are_two_seconds_apart_and_a_closed_terminal_asks_once(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    requests = Requests()
    for seconds, number, expected in [
        (0.0, signal.SIGHUP, 1),
        (5.0, signal.SIGHUP, 1),
        (5.1, signal.SIGTERM, 2),
        (7.0, signal.SIGTERM, 2),
        (7.2, signal.SIGUSR2, 3),
        (9.9, signal.SIGXCPU, 3),
    ]:
        now[0] = 100.0 + seconds
        requests.add(number)
        assert requests.number == expected, (seconds, number)


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


def test_a_study_answers_a_signal_while_it_is_imported(tmp_path):
    """With code 0 and a line; it came before anything that could be saved."""
    code = f"""
import os, sys
from importlib.abc import MetaPathFinder
from toolkit.cli.main import main

class Slow(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "toolkit.experiments.study.program":
            os.kill(os.getpid(), {int(signal.SIGTERM)})

sys.meta_path.insert(0, Slow())
sys.argv = ["toolkit", "study", "none.toml"]
main()
"""
    assert run_python(["-c", code], folder=tmp_path) == (0, "stopped; the same command continues\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(("command", "what"), [("grid", "continues"), ("merge", "starts again")])
def test_other_commands_tidy_up_and_say_what_comes_next(tmp_path, command, what, number, code):
    program = f"""
import os, sys
from importlib.abc import MetaPathFinder
from tempfile import TemporaryDirectory
from toolkit.cli.main import main

class Slow(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("toolkit.experiments.grid.program", "toolkit.conversion.merging"):
            with TemporaryDirectory(dir="."):
                os.kill(os.getpid(), {int(number)})

sys.meta_path.insert(0, Slow())
sys.argv = ["toolkit", "{command}", "none", *["--output", "out"] * ("{command}" == "merge")]
main()
"""
    assert run_python(["-c", program], folder=tmp_path) == (code, f"interrupted; the same command {what}\n")
    assert list(tmp_path.iterdir()) == []
