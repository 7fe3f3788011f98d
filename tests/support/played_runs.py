"""What workers of a quickstart's tests do in place of fine-tuning; each imports this module, which imports little."""

import json
import os
from collections.abc import Callable

from toolkit.core.errors import UserError
from toolkit.execution.work import Work


def open_played_runner() -> Callable[[Work], None]:
    """A worker that writes down where it ran; a run with learning rate 0 fails, one with -1 ends its process."""

    def finetune_run(work: Work) -> None:
        run = work.payload
        if run.settings["learning_rate"] < 0:
            os._exit(7)
        if run.settings["learning_rate"] == 0:
            raise UserError("no text in the file")
        run.output.mkdir()
        (run.output / "place").write_text(json.dumps([os.getpid(), os.environ["OMP_NUM_THREADS"]]))

    return finetune_run
