"""What workers of tests do in place of fine-tuning; a payload is a word and a file."""

import os
import signal
import time
from pathlib import Path

from toolkit.core.errors import UserError
from toolkit.execution.work import Work as Item


class Work:
    """Runs items: writes its process id to a file, and then does as it is told."""

    def __call__(self, item: Item) -> None:
        word, file = item.payload
        with Path(file).open("a") as ids:
            ids.write(f"{os.getpid()}\n")
        if word == "raise":
            raise UserError("a file is broken")
        if word == "break":
            raise RuntimeError("a bug")
        if word == "die once" and len(Path(file).read_text().splitlines()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "exit":
            os._exit(7)
        if word == "sleep":
            time.sleep(600)
