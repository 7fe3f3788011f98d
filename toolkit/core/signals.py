"""The signals that ask a run to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


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
            signal.signal(number, handler)
