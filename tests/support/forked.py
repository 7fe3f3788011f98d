"""Python in a process where nothing has run, without the seconds that its imports take: forked from the warm server.

What is tested must not depend on variables that a library reads when it is imported, nor on signals or imports.
"""

import contextlib
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from toolkit.parallel.launcher import alone
from toolkit.testing import distributed


class Ended(NamedTuple):
    """Its exit code, and all that it printed."""

    code: int | None
    output: str


def run_python(words: Sequence[str], *, folder: Path, environment: Mapping[str, str] | None = None) -> Ended:
    """`python -c CODE ...` or `python -m MODULE ...` in a folder, which is where imports look first."""
    context = distributed.warm_server()
    receiver, sender = context.Pipe(duplex=False)
    output = folder / ".output"
    process = context.Process(target=_run, args=(list(words), folder, dict(environment or {}), output, sender))
    process.start()
    sender.close()
    process.join(300)
    if process.is_alive():
        process.kill()
        process.join()
    # One that was killed has sent nothing.
    with contextlib.suppress(EOFError):
        distributed.cpu_seconds += receiver.recv()
    printed = output.read_text(encoding="utf-8", errors="replace")
    output.unlink()
    return Ended(process.exitcode, printed)


def _run(words: list[str], folder: Path, environment: dict[str, str], output: Path, sender: Connection) -> None:
    with output.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    # The server has those of this test process, which may have been a run's only rank before.
    for name in alone(0):
        os.environ.pop(name, None)
    os.environ.update(environment)
    sys.path.insert(0, str(folder))
    kind, what, *rest = words
    sys.argv = [what if kind == "-m" else kind, *rest]
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(what, {"__name__": "__main__"})
    finally:
        sender.send(distributed.cpu_seconds_here())
