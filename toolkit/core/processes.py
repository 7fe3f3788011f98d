"""Processes that end with others.

python -m toolkit.core.processes PID MODULE ...      runs a module as a program that ends with process PID
"""

import os
import runpy
import sys
import threading
import time
from contextlib import suppress

import psutil

_SECONDS_BETWEEN_LOOKS = 0.5


def end_with(pid: int) -> None:
    """End this process at once, with exit code 1, soon after another one is gone; a thread watches that one."""

    def watch() -> None:
        with suppress(psutil.Error):
            other = psutil.Process(pid)
            while other.is_running() and other.status() != psutil.STATUS_ZOMBIE:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, name=f"end-with-{pid}", daemon=True).start()


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
