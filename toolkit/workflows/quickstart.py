"""`toolkit quickstart`: the whole path on bundled text, one program after the other, and a page that shows it.

prepare -> pretrain, CLM then MLM, on two ranks -> convert to both Hugging Face forms -> fine-tune the encoder and three
random twins -> report. With a comparison, a run without CLM is trained as well. Nothing of it needs a network. Started
again, stages that are finished and intact are used as they are, pretraining goes on from its newest checkpoint, and the
report is written anew.
"""

import os
from pathlib import Path

from toolkit.workflows.job import held

QUICKSTART_FOLDER = Path("runs/quickstart")


def run_quickstart(folder: Path = QUICKSTART_FOLDER, *, compare: bool = False) -> int:
    """Do everything that is not done yet, write the report, and return the exit code.

    Args:
        folder: everything is written below it.
        compare: also train the run without CLM, and show both.

    Raises:
        UserError: the folder is in use, cannot be written, or holds something else.
    """
    _prepare_environment()
    from toolkit.workflows.quickstart_stages import PretrainingEnded, Quickstart

    with held(folder):
        try:
            Quickstart(folder, compare=compare).run()
        except PretrainingEnded as ended:
            return ended.code
    return 0


def _prepare_environment() -> None:
    """What libraries read once, when they are loaded; ranks inherit it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Threads that wait for one another by spinning made fine-tuning four times as slow on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
