"""The signals that ask a run to stop, from the first moment of the command that starts it.

Imports nothing that takes long: until the signals are in hand, one of them ends the process with nothing said.
"""

import signal
from types import FrameType, TracebackType
from typing import Any

from toolkit.core.signals import is_insisting, stop_signals


def nothing_saved(before: str = "step") -> str:
    """Message on a run that was interrupted before the first step or checkpoint."""
    return f"interrupted before the first {before}, nothing was saved; the same command starts again"


class EarlyStop:
    """Request to stop inside a `with`; the handlers before it are restored after it.

    While a run is resolved there is no step to finish, so the first signal is remembered for the ranks, which know what
    step they are at; a second one ends the process.
    """

    def __init__(self) -> None:
        self._is_signalled = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "EarlyStop":
        self._previous = {number: signal.signal(number, self._on_signal) for number in stop_signals()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """True once a stop was requested."""
        return self._is_signalled

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_signalled = True
        if is_insisting(number):
            for other in filter(is_insisting, self._previous):
                signal.signal(other, signal.SIG_DFL)
