"""Life of a worker's process: where its output goes, how it loads what runs items, and what it answers to one.

python -m toolkit.execution.worker WORK.pickle      runs one item, for schedulers that start programs, such as Slurm
"""

import gc
import json
import os
import pickle
import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from toolkit.core.errors import ToolkitError
from toolkit.core.files import atomic_write
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


def write_work(path: Path, runner: str, work: Work) -> None:
    """Write an item for the program above; the answer of an earlier attempt is removed."""
    answer_file(path).unlink(missing_ok=True)
    atomic_write(path, pickle.dumps((runner, work)))


def read_answer(path: Path) -> Answer | None:
    """The program's answer to the work at `path`; None where it has not ended, or was lost."""
    try:
        message, is_sound = json.loads(answer_file(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return message, is_sound


def answer_file(path: Path) -> Path:
    """File of the program's answer to the work at `path`."""
    return path.with_suffix(".answer.json")


def _main(path: Path) -> int:
    runner, work = pickle.loads(path.read_bytes())
    answer = attempt(load_runner(runner), work)
    atomic_write(answer_file(path), json.dumps(answer))
    return 0 if answer[0] is None else 1


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
