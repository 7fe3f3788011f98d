"""`toolkit quickstart`: the whole pipeline on text and labels that are bundled in this folder."""

import os
from pathlib import Path
from typing import Literal

from toolkit.core.locks import locked_folder


def run_quickstart(folder: Path = Path("runs/quickstart"), *, comparison: Literal["none", "mlm-only"] = "none") -> int:
    """Run the unfinished stages and write the report, all below `folder`; return the exit code.

    A comparison that was trained earlier stays in the report.
    """
    # Libraries read it once, when they are imported; ranks inherit it.
    os.environ["HF_HUB_OFFLINE"] = "1"
    from toolkit.quickstart.program import Job

    with locked_folder(
        folder,
        ".job.lock",
        timeout=0,
        in_use=f"the same job is already running in {folder}. Wait for it, or stop it.",
        unwritable=lambda reason: f"could not write to {folder}: {reason}. Start in a writable folder.",
    ):
        return Job(folder, comparison).run()
