"""Life of a worker's process: where its output goes, how it loads what runs items, and what it answers to one."""

import gc
import os
import pkgutil
import traceback
from collections.abc import Callable
from pathlib import Path

from toolkit.core.errors import ToolkitError
from toolkit.execution.work import Work

Runner = Callable[[Work], None]
Answer = tuple[str | None, bool]
"""The message of a failure, if any, and whether the process is still as good as a fresh one."""


def redirect_output(log: Path) -> None:
    """Append what this process prints from now on to a file."""
    with log.open("a", encoding="utf-8") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)


def load_runner(name: str) -> Runner:
    """Runner of items, from the "module:name" of a callable that returns it."""
    runner: Runner = pkgutil.resolve_name(name)()
    # The Trainer collects garbage at every start: what is imported need not be looked through each time.
    gc.collect()
    gc.freeze()
    return runner


def attempt(runner: Runner, work: Work) -> Answer:
    """Run an item; errors are part of the answer."""
    print(f"--- {work.key}", flush=True)
    try:
        runner(work)
    except ToolkitError as error:
        # Raised before training, or after it: nothing was interrupted.
        print(error, flush=True)
        return str(error), True
    except Exception as error:
        traceback.print_exc()
        if isinstance(error, OSError) and error.filename:
            return f"could not read or write {error.filename}: {error.strerror}", False
        return f"{type(error).__name__}: {error}\n{traceback.format_exc().rstrip()}", False
    return None, True
