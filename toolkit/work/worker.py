"""A worker: a process that does items of a job until none is left.

python -m toolkit.core.processes PID toolkit.work.worker JOB LOG      does items of a pickled job; ends with process PID
"""

import gc
import os
import pickle
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from toolkit.work.claims import BrokenError, StoppedError, work_on

BROKEN = 70
"""Exit code of a worker that should do no other item, since one failed because of a bug."""


def worker_command(job: Path, log: Path) -> Sequence[str]:
    """The command of a worker that ends with this process and appends its output to `log`."""
    return sys.executable, "-m", "toolkit.core.processes", str(os.getpid()), "toolkit.work.worker", str(job), str(log)


def main() -> int:
    """Do items, and return the exit code."""
    job_file, log = map(Path, sys.argv[1:])
    with log.open("a", encoding="utf-8") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    job = pickle.loads(job_file.read_bytes())
    # The Trainer collects garbage at every start: it need not scan imported objects each time.
    gc.collect()
    gc.freeze()
    try:
        work_on(job, say=partial(print, flush=True))
    except StoppedError:
        return 0
    except BrokenError:
        return BROKEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
