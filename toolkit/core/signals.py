"""The signals that ask a run to stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import Self


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGUSR1, and SIGHUP (the terminal was closed) unless it is ignored, as under `nohup`."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGUSR1, *([] if is_ignored else [signal.SIGHUP]))


def is_insisting(number: int) -> bool:
    """A signal that, as a second one, ends a run at once.

    A terminal that is closed may bring SIGHUP twice, from the system and from the shell, and systemd sends one behind
    SIGTERM: none of them means more than the first.
    """
    return number != signal.SIGHUP


@contextmanager
def stop_signals_kept() -> Iterator[None]:
    """Give the stop signals back to whom they belonged, behind the block."""
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            # None: the handler was not set from Python, which cannot set it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


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
