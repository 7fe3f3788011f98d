"""The signals that ask a run to stop, from the first moment of the command that starts it.

Imports nothing that takes long: until the signals are in hand, one of them ends the process with nothing said.
"""

import os
import signal
from types import FrameType

from toolkit.core.signals import Requests, StopSignals


def nothing_saved(before: str = "step", *, how: str = "interrupted") -> str:
    """Message on a run that was interrupted or killed before the first step or checkpoint."""
    return f"{how} before the first {before}, nothing was saved; the same command starts again"


class EarlyStop(StopSignals):
    """Request to stop before there are ranks.

    While a run is resolved there is no step to finish, so the first signal is remembered for the ranks, which know what
    step they are at; a second request ends the process.
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
