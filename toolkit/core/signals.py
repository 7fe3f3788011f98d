"""The signals that ask a run to stop."""

import signal


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
