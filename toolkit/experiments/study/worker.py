"""A worker's process: trains pieces, each by `toolkit train` in a process of its own."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from toolkit.core.errors import NonFiniteError, ToolkitError
from toolkit.core.signals import stop_signals
from toolkit.execution.work import Work
from toolkit.run.divergence import read_divergence
from toolkit.run.folder import RunFolder

# A worker that is killed cannot stop what it has started.
_PROGRAM = (sys.executable, "-m", "toolkit.core.processes")
_TOOLKIT = ("toolkit.cli",)
_LINES_OF_AN_ERROR = 3


@dataclass(frozen=True)
class PieceTask:
    """All that training a piece takes."""

    arguments: tuple[str, ...]
    """Those of `toolkit`."""
    run: RunFolder
    """The run that it trains."""
    until: int
    """Updates that the run has when the piece is done."""
    log: Path
    """What it prints goes to the end of this file."""


class PieceRunner:
    """Runs pieces; passes a stop on to the one that trains, which then saves and ends well."""

    def __init__(self) -> None:
        self._training: subprocess.Popen[bytes] | None = None
        for number in stop_signals():
            signal.signal(number, self._stop)

    def __call__(self, work: Work) -> None:
        """Train a piece; a ToolkitError where it ended otherwise than well, or was stopped before it was done."""
        task: PieceTask = work.payload
        command = [*_PROGRAM, str(os.getpid()), *_TOOLKIT, *task.arguments]
        with task.log.open("ab") as log:
            begin = log.tell()
            self._training = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            code = self._training.wait()
            self._training = None
        if code == NonFiniteError.exit_code and (found := read_divergence(task.run)) is not None:
            raise ToolkitError(f"it diverged at step {found.step:,}, which is its outcome; see {task.log}")
        if code:
            with task.log.open("rb") as log:
                log.seek(begin)
                last = log.read().decode(errors="replace").strip().splitlines()[-_LINES_OF_AN_ERROR:]
            raise ToolkitError(f"exit code {code}; {task.log} ends:\n  " + "\n  ".join(last))
        if (step := task.run.newest_step()) < task.until:
            raise ToolkitError(f"it was asked to stop and has saved step {step:,}. The same command goes on.")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._training is None:
            sys.exit(0)
        self._training.send_signal(number)
