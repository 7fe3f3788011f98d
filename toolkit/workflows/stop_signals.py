"""The signals that ask a run to stop, from the first moment of the command that starts it.

Imports nothing that takes long: until the signals are in hand, one of them ends the process with nothing said.
"""

import signal
from types import FrameType

from toolkit.core.signals import StopSignals, is_insisting, stop_signals


def nothing_saved(before: str = "step") -> str:
    """Message on a run that was interrupted before the first step or checkpoint."""
    return f"interrupted before the first {before}, nothing was saved; the same command starts again"


class EarlyStop(StopSignals):
    """Request to stop before there are ranks.

    While a run is resolved there is no step to finish, so the first signal is remembered for the ranks, which know what
    step they are at; a second one ends the process.
    """

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_signalled = True
        if is_insisting(number):
            for other in filter(is_insisting, stop_signals()):
                signal.signal(other, signal.SIG_DFL)
