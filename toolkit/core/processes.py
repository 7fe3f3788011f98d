"""Processes that end with others."""

import os
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
