"""One rank of a pretraining run, as a launcher starts it."""

import os
import sys
import time
from collections.abc import Sequence

from toolkit.core.errors import UserError
from toolkit.engine.ranks import has_joined
from toolkit.run import load_run
from toolkit.training import pretrain
from toolkit.training.stopping import end_with_starter
from toolkit.workflows.bundled import prepare_if_named

_DEFAULT_FOLDER = "runs/pretrain"
_SECONDS_FOR_RANK_0 = 5.0


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
    try:
        settings = load_run(source, overrides)
        prepare_if_named(settings)
        outcome = pretrain(settings, ds_config=ds_config)
    except UserError as error:
        _report_own_error(error)
        raise
    if os.environ.get("RANK", "0") == "0":
        print(outcome, flush=True)


def _report_own_error(error: UserError) -> None:
    """Print what only this rank knows. Rank 0's errors, and those that all ranks agreed on, are rank 0's to print."""
    rank = os.environ.get("RANK", "0")
    if rank == "0" or error.is_agreed:
        return
    if not has_joined() and os.environ.get("LOCAL_RANK") != "0":
        # Mostly rank 0 meets the same error; then its launcher ends this process while it waits here.
        time.sleep(_SECONDS_FOR_RANK_0)
    print(f"error: rank {rank}: {error}", file=sys.stderr, flush=True)
