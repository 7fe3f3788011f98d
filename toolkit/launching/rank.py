"""A rank of a pretraining run, as a launcher starts it."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from toolkit.core.errors import LostRankError, ToolkitError, UserError
from toolkit.core.processes import end_with
from toolkit.core.text import terminal_safe
from toolkit.engine.ranks import has_joined
from toolkit.parallel.launcher import STARTER_VARIABLE, check_launcher, read_launcher
from toolkit.preprocess.bundled import prepare_if_named
from toolkit.run import RunFolder
from toolkit.run.corpora import open_corpora
from toolkit.run.load import declare_run
from toolkit.training.pretrain import pretrain_declared, pretrain_resolved

_DEFAULT_FOLDER = "runs/pretrain"
_SECONDS_FOR_RANK_0 = 15.0
_SECONDS_FOR_TRACEBACK = 3.0


def run_rank(source: str | None, overrides: Sequence[str], *, ds_config: str, until: int | None = None) -> None:
    """Pretrain from a run file or preset (None: quickstart, into runs/pretrain); rank 0 prints how it ended."""
    if source is None:
        source, overrides = "quickstart", [f"run.dir={_DEFAULT_FOLDER}", *overrides]
    with own_errors_reported():
        declared = declare_run(source, overrides)
        prepare_if_named(declared.settings.data)
        # Before ranks wait for one another, each checks that it can read its data.
        open_corpora(declared)
        _say(pretrain_declared(declared, ds_config=ds_config, until=until).ending(until))


def run_resolved_rank(run_folder: str, *, until: int | None = None) -> None:
    """Pretrain a run that `toolkit train` has resolved; rank 0 prints how it ended."""
    with own_errors_reported():
        _say(pretrain_resolved(RunFolder(run_folder), until=until).ending(until))


def _say(text: str) -> None:
    if read_launcher().rank == 0:
        print(text, flush=True)


@contextmanager
def own_errors_reported() -> Iterator[None]:
    """Print errors that only this rank has; rank 0 prints its own and those that all ranks agreed on."""
    # A run without its starter would keep the run folder locked and the machine busy.
    if starter := os.environ.get(STARTER_VARIABLE):
        end_with(int(starter))
    try:
        check_launcher()
        yield
    except LostRankError as error:
        if error.is_told_here and (rank := read_launcher().rank) != 0:
            print(terminal_safe(f"error: rank {rank}: {error}"), file=sys.stderr, flush=True)
        raise
    except UserError as error:
        ours = read_launcher()
        if ours.rank != 0 and not error.is_agreed:
            if not has_joined() and ours.local_rank != 0:
                # Usually rank 0 hits the same error; then its launcher ends this process while it waits here.
                time.sleep(_SECONDS_FOR_RANK_0)
            print(terminal_safe(f"error: rank {ours.rank}: {error}"), file=sys.stderr, flush=True)
        raise
    except ToolkitError as error:
        if error.exit_code == 1 and error.is_of_another_rank:
            # A launcher that sees this rank end stops the others, one of which still prints its traceback.
            time.sleep(_SECONDS_FOR_TRACEBACK)
        raise
