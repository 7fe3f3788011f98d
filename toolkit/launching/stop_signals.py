"""The signals that ask a run to stop, from the first moment of the command that starts it.

Imports nothing slow: until the handlers are installed, such a signal ends the process without a message.
"""

import os
import signal
from types import FrameType

from toolkit.core.signals import Requests, StopSignals


def nothing_saved(before: str = "step", *, how: str = "interrupted") -> str:
    """Message on a run that was interrupted or killed before the first step or checkpoint."""
    return f"{how} before the first {before}, nothing was saved; the same command starts again"


class EarlyStop(StopSignals):
    """Request to stop before ranks start.

    While a run is being resolved there is no step to finish, so the first signal is remembered for the ranks, which
    know their step; a second request ends the process.
    """

    def __init__(self) -> None:
        super().__init__()
        self._requests = Requests()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_signalled = True
        self._requests.add(number)
        if self._requests.number > 1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
