"""Life of a worker's process: where its output goes, how it loads its work, and what it answers to a job."""

import gc
import os
import pkgutil
import traceback
from collections.abc import Callable
from pathlib import Path

from toolkit.core.errors import ToolkitError
from toolkit.experiments.scheduling import Job

Work = Callable[[Job], None]
Answer = tuple[str | None, bool]
"""The message of a failure, if any, and whether the process is still as good as a fresh one."""


def redirect_output(log: Path) -> None:
    """Append what this process prints from now on to a file."""
    with log.open("a", encoding="utf-8") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)


def load_work(name: str) -> Work:
    """What runs jobs: "module:name" of a callable that returns it."""
    work: Work = pkgutil.resolve_name(name)()
    # The Trainer collects garbage at every start: what is imported need not be looked through each time.
    gc.collect()
    gc.freeze()
    return work


def attempt(work: Work, job: Job) -> Answer:
    """Run a job; errors are part of the answer."""
    print(f"--- {job.cell}", flush=True)
    try:
        work(job)
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
