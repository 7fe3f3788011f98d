"""Requests to stop a run after its current step.

Two ways in: a signal to any rank (SIGTERM, SIGUSR1, SIGHUP), for a run under the bare `deepspeed` launcher; and a stop
file, which the process that started the run creates when it gets such a signal itself. The file also covers the seconds
in which ranks are still importing, when a signal would end them.
"""

import os
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from toolkit.core.signals import stop_signals
from toolkit.parallel.launcher import STOP_FILE_VARIABLE


class StopRequest:
    """Request to stop this process; listens inside a `with`, and restores the signal handlers after it."""

    def __init__(self) -> None:
        self._is_signalled = False
        file = os.environ.get(STOP_FILE_VARIABLE)
        self._file = Path(file) if file else None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Python lets no other thread set a handler.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._on_signal) for number in stop_signals()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None: the handler was not set from Python, which cannot set it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def __call__(self) -> bool:
        """True once a stop was requested."""
        return self._is_signalled or (self._file is not None and self._file.exists())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_signalled = True
