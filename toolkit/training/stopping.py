"""Requests to stop a run after its current step.

Two ways in: a signal to any rank (SIGTERM, SIGUSR1, SIGHUP), for a run under the bare `deepspeed` launcher; and a stop
file, which the process that started the run creates when it gets such a signal itself. The file also covers the seconds
in which ranks are still importing, when a signal would end them.
"""

import os
from pathlib import Path

from toolkit.core.signals import StopSignals
from toolkit.parallel.launcher import STOP_FILE_VARIABLE


class StopRequest(StopSignals):
    """Request to stop this process."""

    def __init__(self) -> None:
        super().__init__()
        file = os.environ.get(STOP_FILE_VARIABLE)
        self._file = Path(file) if file else None

    def __call__(self) -> bool:
        """True once a stop was requested."""
        return self._is_signalled or (self._file is not None and self._file.exists())
