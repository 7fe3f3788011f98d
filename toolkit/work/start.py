"""Workers of a command: the requested number of identical processes, here or elsewhere, until a job has ended."""

import os
import pickle
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from toolkit.core.errors import SettingsError, ToolkitError
from toolkit.work.claims import Claims, Job, process_name
from toolkit.work.commands import job_file
from toolkit.work.worker import BROKEN, worker_command

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_TO_END = 5.0
_MOST_FAILED_STARTS = 3


class ExecutorKind(StrEnum):
    """Place where work runs."""

    LOCAL = "local"
    """Processes of this machine."""
    RAY = "ray"
    """Processes on the machines of a Ray cluster."""
    SLURM = "slurm"
    """Jobs of Slurm, which outlive the command."""

    @classmethod
    def named(cls, name: str) -> "ExecutorKind":
        """The kind with this name; raise `SettingsError` if unknown."""
        if name not in set(cls):
            raise SettingsError(f"unknown executor {name!r}. Choose one of {', '.join(cls)}.")
        return cls(name)


@dataclass(frozen=True)
class Ended:
    """End of a worker: its name in records of attempts ("HOST PID"), its exit code if known, and the reason."""

    process: str
    code: int | None
    reason: str


class Crew(ABC):
    """Workers numbered from 0, restarted while there is work for them; they end with the block.

    Args:
        job: their work.
        most: number of workers.
        logs: folder with a file of each worker's output.
    """

    def __init__(self, job: Job, *, most: int, logs: Path) -> None:
        self._job_file, self._most, self._logs = job_file(job.folder).absolute(), most, logs.absolute()
        self.claims = Claims(job)
        self._alive, self._num_failed_starts = set[int](), 0
        self.is_stopped = False
        """Whether `stop` was called."""
        for folder in (self._job_file.parent, logs):
            folder.mkdir(parents=True, exist_ok=True)
        self._job_file.write_bytes(pickle.dumps(job))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def run(self, look: Callable[[Sequence[str]], object]) -> None:
        """Wait until all items are done or have failed, or, after a stop, until all workers have ended.

        `look` is called at least every second, with new messages about lost workers.
        """
        self.claims.look()
        while self._alive if self.is_stopped else self.claims.left:
            self._fill()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            lines = [line for number in sorted(self._alive) if (line := self._settle(number))]
            self.claims.look()
            look(lines)

    def stop(self) -> None:
        """Ask all workers to save and end, and start no new ones."""
        self.is_stopped = True
        self._terminate()

    def _log(self, number: int) -> Path:
        return self._logs / f"worker-{number}.log"

    def _fill(self) -> None:
        wanted, room = len({item.claimed_as for item in self.claims.left}), self._room()
        for number in range(self._most):
            if len(self._alive) < min(wanted, room) and number not in self._alive and not self.is_stopped:
                self._start(number)
                self._alive.add(number)

    def _settle(self, number: int) -> str | None:
        """Check whether a worker has ended; return a message about it, if any."""
        ended = self._ended(number)
        if ended is None:
            return None
        self._alive.discard(number)
        if ended.code in (0, BROKEN):
            self._num_failed_starts = 0
            return None
        key = self.claims.lose(ended.process, ended.reason)
        self._num_failed_starts = 0 if key is not None else self._num_failed_starts + 1
        if self._num_failed_starts == _MOST_FAILED_STARTS:
            raise ToolkitError(
                f"{_MOST_FAILED_STARTS} workers in a row ended before they began anything, the last one by "
                f"{ended.reason}. What it printed: {self._log(number)}"
            )
        return None if key is None else f"{key}: its worker ended by {ended.reason}; it is run again"

    @abstractmethod
    def _start(self, number: int) -> None:
        """Start a worker."""

    @abstractmethod
    def _ended(self, number: int) -> Ended | None:
        """The end of a started worker; None while it is alive."""

    @abstractmethod
    def _terminate(self) -> None:
        """Ask all workers to end."""

    @abstractmethod
    def _close(self) -> None:
        """End all workers, even in the middle of an item."""

    def _room(self) -> int:
        """Number of workers for which there is room."""
        return self._most


def why_ended(code: int, log: Path) -> str:
    """How a process ended, by its exit code, and where its output is."""
    if code >= 0:
        return f"exit code {code}; see {log}"
    hint = ", as the system does where memory is short" if -code == signal.SIGKILL else ""
    return f"signal {-code} ({signal.Signals(-code).name}){hint}"


class Here(Crew):
    """Processes on this machine, each with one of the environments added to ours."""

    def __init__(self, job: Job, *, places: Sequence[Mapping[str, str]], logs: Path) -> None:
        super().__init__(job, most=len(places), logs=logs)
        self._places, self._processes = places, dict[int, subprocess.Popen[bytes]]()

    def _start(self, number: int) -> None:
        # In its own process group, which Ctrl-C in the terminal does not reach: this process decides.
        self._processes[number] = subprocess.Popen(
            worker_command(self._job_file, self._log(number)),
            env={**os.environ, **self._places[number]},
            process_group=0,
        )

    def _ended(self, number: int) -> Ended | None:
        process = self._processes[number]
        code = process.poll()
        if code is None:
            return None
        return Ended(process_name(process.pid), code, why_ended(code, self._log(number)))

    def _terminate(self) -> None:
        for number in self._alive:
            self._processes[number].terminate()

    def _close(self) -> None:
        if self.claims.left:
            self._terminate()
        # Otherwise they end by themselves.
        deadline = time.monotonic() + _SECONDS_TO_END
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
            process.kill()
            process.wait()
