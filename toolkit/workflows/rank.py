"""One rank of a pretraining run, as a launcher starts it."""

import os
from collections.abc import Sequence

from toolkit.run import load_run
from toolkit.training import pretrain
from toolkit.training.stopping import end_with_starter
from toolkit.workflows.bundled import prepare_if_named

_DEFAULT_FOLDER = "runs/pretrain"


def run_rank(source: str | None, overrides: Sequence[str], *, ds_config: str) -> None:
    """Pretrain; rank 0's last line says how it ended.

    Args:
        source: run file or preset; None: the quickstart preset, into runs/pretrain.
        overrides: `a.b=value`.
        ds_config: a DeepSpeed JSON, or the name of a shipped one.
    """
    end_with_starter()
    if source is None:
        source, overrides = "quickstart", [f"run.dir={_DEFAULT_FOLDER}", *overrides]
    settings = load_run(source, overrides)
    prepare_if_named(settings)
    outcome = pretrain(settings, ds_config=ds_config)
    if os.environ.get("RANK", "0") == "0":
        print(outcome, flush=True)
