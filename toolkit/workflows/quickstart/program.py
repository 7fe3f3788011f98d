"""`toolkit quickstart`: the whole path on bundled text, one program after the other, and an HTML report.

prepare -> pretrain, CLM then MLM, on two ranks -> convert to both Hugging Face forms -> fine-tune the encoder and three
random twins -> report. With a comparison, a run without CLM is trained as well. None of it needs a network. When it is
started again, finished and intact stages are kept, pretraining resumes from its newest checkpoint, and the report is
rewritten.
"""

import os
from pathlib import Path
from typing import Literal

from toolkit.execution.stages import locked

QUICKSTART_FOLDER = Path("runs/quickstart")


def run_quickstart(folder: Path = QUICKSTART_FOLDER, *, comparison: Literal["none", "mlm-only"] = "none") -> int:
    """Run the stages that are not finished, write the report, all below `folder`, and return the exit code."""
    # Libraries read these once, when they are imported; ranks inherit them.
    os.environ["HF_HUB_OFFLINE"] = "1"
    from toolkit.workflows.quickstart.stages import PretrainingEnded, Quickstart

    with locked(folder):
        try:
            Quickstart(folder, comparison).run()
        except PretrainingEnded as ended:
            return ended.code
    return 0
