"""The signals that ask a run to stop."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import Self

_SECONDS_OF_A_REQUEST = 2.0


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, what batch systems send before it (SIGUSR1, SIGUSR2, SIGXCPU), and SIGHUP (the terminal was closed)
    unless it is ignored, as under `nohup`.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    always = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
    return always if is_ignored else (*always, signal.SIGHUP)


class Requests:
    """How often a process was asked to stop.

    Signals of one request may be several: batch systems send one to a process and to its group, and another kind soon
    after. A terminal that is closed may bring SIGHUP twice, from the system and from the shell, and systemd sends one
    after SIGTERM; SIGXCPU comes each second from a limit on. Neither ever means more than the first.
    """

    def __init__(self) -> None:
        self.number, self._last = 0, -_SECONDS_OF_A_REQUEST

    def add(self, number: int) -> None:
        """Take note of a signal."""
        now, may_insist = time.monotonic(), number not in (signal.SIGHUP, signal.SIGXCPU)
        if not self.number or (may_insist and now - self._last >= _SECONDS_OF_A_REQUEST):
            self.number, self._last = self.number + 1, now


@contextmanager
def stop_signals_kept() -> Iterator[None]:
    """Give the stop signals back to their owners, after the block."""
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            # None: the handler was not set from Python, which cannot set it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def ended_by_stop_signals(message: str) -> Iterator[None]:
    """Inside the block a stop signal prints a message and ends the process with exit code 0: nothing is lost there."""

    def end(number: int, frame: FrameType | None) -> None:
        os.write(sys.stderr.fileno(), f"{message}\n".encode())
        raise SystemExit(0)

    with stop_signals_kept():
        for number in stop_signals():
            signal.signal(number, end)
        yield


class StopSignals:
    """Stop signals that came inside a `with`; the handlers before it are restored after it."""

    def __init__(self) -> None:
        self._is_signalled, self._kept = False, ExitStack()

    def __enter__(self) -> Self:
        # Python lets no other thread set a handler.
        if threading.current_thread() is threading.main_thread():
            self._kept.enter_context(stop_signals_kept())
            for number in stop_signals():
                signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._kept.close()

    def __call__(self) -> bool:
        """True once a stop was requested."""
        return self._is_signalled

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_signalled = True
