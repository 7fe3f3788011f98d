"""Process termination: together with another process, and with an exit code that tells what the program did.

python -m toolkit.core.processes PID MODULE ...      runs a module as a program that ends with process PID
"""

import atexit
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_SECONDS_BETWEEN_LOOKS = 0.5
_INTERRUPTED = 130
_OUTPUT_LOST = 120
"""Python's own exit code if it cannot flush the remaining output."""


def end_with(pid: int) -> None:
    """Abruptly end this process, with exit code 1, soon after process `pid` has ended; a thread watches it."""
    # Imported here, as ctypes below: `toolkit --help` needs neither.
    import psutil

    def watch() -> None:
        with suppress(psutil.Error):
            other = psutil.Process(pid)
            while other.is_running() and other.status() != psutil.STATUS_ZOMBIE:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, name=f"end-with-{pid}", daemon=True).start()


def end_after(program: Callable[[], object]) -> NoReturn:
    """Run a program as this process's only work, and exit with the code that `sys.exit` would use for its result.

    If the interpreter shuts down while another thread is in native code, that thread is unwound when it returns, and
    in torch's bindings this aborts the process (SIGABRT), whatever the program did. So everything that Python runs at
    exit is run here, and then `os._exit` ends the process. Files that are still open are not flushed.
    """
    try:
        code = program()
    except SystemExit as leaving:
        code = leaving.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    if code is not None and not isinstance(code, int):
        with suppress(OSError):
            print(code, file=sys.stderr)
        code = 1
    # In Python's order: join threads, including the pools of concurrent.futures; then run the `atexit` handlers, which
    # include those for temporary folders, child processes, log files and process groups.
    for finish in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        try:
            finish()
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
    is_flushed = _is_flushed()
    os._exit((code or (0 if is_flushed else _OUTPUT_LOST)) & 0xFF)


def _is_flushed() -> bool:
    """Flush the remaining output, including that of C libraries such as NCCL's log; False if that fails."""
    import ctypes

    is_flushed = True
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            if not stream.closed:
                stream.flush()
        except (OSError, ValueError) as error:
            is_flushed = False
            with suppress(OSError, ValueError):
                print(f"error: could not write what was printed: {error}", file=sys.stderr, flush=True)
    ctypes.CDLL(None).fflush(None)
    return is_flushed


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    del sys.argv[:2]

    def _module() -> None:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

    end_after(_module)
