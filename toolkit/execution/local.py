"""Workers as processes of this machine.

The parent sends an item through a pipe and gets the outcome back. A worker that is killed closes its pipe; the parent
sees that, and replaces it. A parent that is killed ends too, and every worker waits for that in a thread, so that none
goes on writing while the next parent begins.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from toolkit.core.processes import end_after, end_with
from toolkit.execution.work import Event, Failed, Finished, Lost, Work
from toolkit.execution.worker import attempt, load_runner, redirect_output

_SECONDS_TO_END = 5.0


class LocalExecutor:
    """Processes that are started when they get their first item, each with one of the environments beside ours.

    `runner` is "module:name" of a callable; called once in each worker, it returns what runs an item, and raises where
    that fails. A name, so that it is imported when the worker's environment and output are in place.
    """

    def __init__(self, runner: str, *, environments: Sequence[Mapping[str, str]], logs: Path) -> None:
        self.workers = range(len(environments))
        self._runner, self._environments, self._logs = runner, environments, logs
        self._workers: dict[int, tuple[SpawnProcess, Connection]] = {}
        self._items: dict[int, Work] = {}
        logs.mkdir(parents=True, exist_ok=True)

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers that live."""
        return [process.pid for process, _ in self._workers.values() if process.pid is not None and process.is_alive()]

    def start(self, worker: int, work: Work) -> None:
        """Give an idle worker an item; one that has ended is replaced."""
        self._items[worker] = work
        if worker in self._workers:
            with suppress(OSError):
                self._workers[worker][1].send(work)
                return
        self._replace(worker)
        # A worker that ends at once is noticed by `wait`.
        with suppress(OSError):
            self._workers[worker][1].send(work)

    def wait(self, seconds: float) -> list[Event]:
        """Events that have happened, or do within so many seconds."""
        by_pipe = {self._workers[worker][1]: worker for worker in self._items}
        return [self._outcome(by_pipe[pipe]) for pipe in wait(list(by_pipe), seconds) if isinstance(pipe, Connection)]

    def close(self) -> None:
        """End all workers, in the middle of an item too."""
        for worker, (process, pipe) in self._workers.items():
            # One that waits for an item ends by itself.
            pipe.close()
            if worker in self._items:
                process.terminate()
        for process, _ in self._workers.values():
            process.join(_SECONDS_TO_END)
            process.kill()
        self._workers.clear()
        self._items.clear()

    def _replace(self, worker: int) -> None:
        if worker in self._workers:
            self._join(worker)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        life = partial(_serve, theirs, self._runner, self._logs / f"worker-{worker}.log")
        process = context.Process(target=end_after, args=(life,), name=f"worker-{worker}")
        with _environment(self._environments[worker]):
            process.start()
        # Else the pipe would stay open when the worker ends.
        theirs.close()
        self._workers[worker] = process, ours

    def _outcome(self, worker: int) -> Event:
        key = self._items.pop(worker).key
        try:
            message, is_sound = self._workers[worker][1].recv()
        except (EOFError, OSError):
            return Lost(worker, key, self._join(worker))
        if not is_sound:
            self._join(worker)
        return Finished(worker, key) if message is None else Failed(worker, key, message)

    def _join(self, worker: int) -> str:
        """Close a worker's pipe, at which it ends, and say how it ended."""
        process, pipe = self._workers.pop(worker)
        pipe.close()
        process.join(_SECONDS_TO_END)
        process.kill()
        process.join()
        code = process.exitcode or 0
        if code >= 0:
            return f"exit code {code}; see {self._logs / f'worker-{worker}.log'}"
        hint = ", as the system does where memory is short" if -code == signal.SIGKILL else ""
        return f"signal {-code} ({signal.Signals(-code).name}){hint}"


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Ours with more, inside the block: a process inherits it."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _serve(pipe: Connection, name: str, log: Path) -> None:
    """Items in, answers out, until the pipe is closed."""
    # Ctrl-C reaches the whole terminal; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    end_with(parent.pid)
    redirect_output(log)
    # With the first item: where it cannot be loaded, that item fails, and no second worker tries.
    loaded = cache(load_runner)
    while True:
        try:
            work = pipe.recv()
        except EOFError:
            return
        pipe.send(attempt(lambda item: loaded(name)(item), work))
