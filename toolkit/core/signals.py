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
    """SIGTERM, the signals that batch systems send before it (SIGUSR1, SIGUSR2, SIGXCPU), and SIGHUP (the terminal was
    closed) unless it is ignored, as under `nohup`.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    always = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
    return always if is_ignored else (*always, signal.SIGHUP)


class Requests:
    """Number of times that a process was asked to stop.

    One request may arrive as several signals: batch systems signal a process and its group, and send another kind soon
    after. Closing a terminal may send SIGHUP twice, from the system and from the shell, and systemd sends one after
    SIGTERM; SIGXCPU repeats every second once its limit is reached. SIGHUP and SIGXCPU never count as a second request.
    """

    def __init__(self) -> None:
        self.number, self._last = 0, -_SECONDS_OF_A_REQUEST

    def add(self, number: int) -> None:
        """Record a signal."""
        now, may_insist = time.monotonic(), number not in (signal.SIGHUP, signal.SIGXCPU)
        if not self.number or (may_insist and now - self._last >= _SECONDS_OF_A_REQUEST):
            self.number, self._last = self.number + 1, now


@contextmanager
def stop_signals_kept() -> Iterator[None]:
    """Restore the handlers of the stop signals after the block."""
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            # None: the handler was not set from Python, which cannot restore it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def ended_by_stop_signals(message: str) -> Iterator[None]:
    """Inside the block, a stop signal prints a message and ends the process with exit code 0: no work is lost there."""

    def end(number: int, frame: FrameType | None) -> None:
        os.write(sys.stderr.fileno(), f"{message}\n".encode())
        raise SystemExit(0)

    with stop_signals_kept():
        for number in stop_signals():
            signal.signal(number, end)
        yield


class StopSignals:
    """Records a stop signal that arrives inside a `with` block; the previous handlers are restored after it."""

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
        """True if a stop was requested."""
        return self._is_signalled

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_signalled = True
