"""The pretraining program: the work of one rank of a run, up to the last checkpoint.

1. Join the other ranks. If the run is not resolved yet (`toolkit train` does that), rank 0 resolves it and writes
   run.toml and deepspeed.json; the others wait, for as long as it takes.
2. Read those two and open the data, which must be the same on all ranks. Build the encoder and its engine, with each
   rank trying out kernels, the compiler and, on GPUs, the memory of a micro-batch. Restore the newest intact
   checkpoint.
3. Train. Exit together, with the same exit code on every rank.
"""

import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from toolkit.core.allocator import keep_freed_memory
from toolkit.core.signals import StopSignals
from toolkit.engine.gpus import has_gpu
from toolkit.engine.peers import peers_watched
from toolkit.engine.ranks import Ranks, join_ranks
from toolkit.parallel.launcher import STOP_FILE_VARIABLE, read_launcher
from toolkit.run.continuation import find_continuation, read_continuation
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.divergence import divergence_kept
from toolkit.run.folder import RunFolder
from toolkit.run.load import declare_settings, read_resolved
from toolkit.run.remote_checkpoints import copy_missing
from toolkit.run.resolve import Outcome, read_run, resolve_run
from toolkit.run.settings import RunSettings
from toolkit.training.agreement import check_same_inputs, check_shared_folder
from toolkit.training.loop import train
from toolkit.training.memory_trial import fit_in_main_memory, fit_micro_batches, torch_errors_explained
from toolkit.training.set_up import assemble, build_engine, load_weights

_GPU_SWITCH_SECONDS = 5e-4
"""Python's default of 5 ms is the time of many kernels."""


class StopRequest(StopSignals):
    """Request to stop this process after its current step.

    It comes in two ways: a signal to any rank (`stop_signals`), for a run under the bare `deepspeed` launcher; and a
    stop file, which the process that started the run creates when it gets such a signal itself. The file also covers
    the seconds in which ranks are still importing, when a signal would kill them.
    """

    def __init__(self) -> None:
        super().__init__()
        file = os.environ.get(STOP_FILE_VARIABLE)
        self._file = Path(file) if file else None

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        return self._is_signalled or (self._file is not None and self._file.exists())


def pretrain(settings: RunSettings, *, ds_config: str | None = None, until: int | None = None) -> Outcome:
    """Run, or resume, a pretraining run as one of its ranks, the only one if no launcher set RANK in the environment.

    Args:
        settings: as returned by `load_run`.
        ds_config: path of a DeepSpeed JSON, or the name of a shipped one; None: chosen.
        until: number of updates after which it stops, with a checkpoint; None: it does not stop before its end.

    Raises:
        UserError: settings, corpus or checkpoint do not fit; on every rank.
        NonFiniteError: the loss or a gradient is not finite; on every rank.
    """
    return pretrain_declared(declare_settings(settings), ds_config=ds_config, until=until)


def pretrain_declared(
    declared: DeclaredRun,
    *,
    ds_config: str | None,
    until: int | None = None,
    as_next_of: DeclaredRun | None = None,
    most_steps: int | None = None,
) -> Outcome:
    """Run, or resume, a declared run as one of its ranks; rank 0 resolves and checks it.

    With `as_next_of`, it starts where that run would continue; it makes at most `most_steps` steps.
    """
    with StopRequest() as is_stop_requested, ExitStack() as stack:
        ranks = join()
        stack.enter_context(peers_watched(ranks))
        with ranks.together():
            if ranks.rank == 0:
                given = None if as_next_of is None else find_continuation(as_next_of)
                run = resolve_run(declared, ds_config=ds_config, num_ranks=ranks.world_size, continuation=given)
                print("".join(f"{choice}\n" for choice in run.division.choices), end="", flush=True)
                # In this order: a dying rank 0 of an earlier launch holds both, and is waited for.
                stack.enter_context(run.folder.locked())
                stack.enter_context(run.folder.reserved())
                run.write()
        return _pretrain(declared.folder, ranks, is_stop_requested, until=until, most_steps=most_steps)


def pretrain_resolved(folder: RunFolder, *, until: int | None) -> Outcome:
    """Run, or resume, as one of its ranks, a run that `ResolvedRun.write` wrote to its folder."""
    with StopRequest() as is_stop_requested, ExitStack() as stack:
        ranks = join()
        stack.enter_context(peers_watched(ranks))
        with ranks.together():
            if ranks.rank == 0:
                stack.enter_context(folder.locked())
        return _pretrain(folder, ranks, is_stop_requested, until=until)


def _pretrain(
    folder: RunFolder,
    ranks: Ranks,
    is_stop_requested: StopRequest,
    *,
    until: int | None,
    most_steps: int | None = None,
) -> Outcome:
    check_shared_folder(folder.path, ranks)
    with ranks.together():
        declared = read_resolved(folder.settings_file)
    ranks, total_steps = join_ranks(declared.settings.parallel), declared.plan.schedule.total_steps
    with ranks.together():
        continuation = read_continuation(folder)
        checkpoint = continuation.open()
    step = continuation.step
    stop = min(until or total_steps, step + (most_steps or total_steps), total_steps)
    if step >= stop:
        with ranks.together():
            if ranks.rank == 0 and (copy_to := declared.settings.checkpoint.copy_to):
                copy_missing(folder, copy_to, set())
        return Outcome(folder.path, step, total_steps, was_there=True)
    with ranks.together():
        run = read_run(declared, continuation, num_ranks=ranks.world_size)
    check_same_inputs(ranks, run.data, checkpoint, key=continuation.key or "the newest checkpoint")
    run = fit_in_main_memory(run, ranks)
    engine = build_engine(run, run.division, ranks=ranks)
    try:
        is_compiled = engine.kernels["blocks"] == "compiled"
        run = fit_micro_batches(replace(run, division=replace(run.division, is_compiled=is_compiled)), engine)
        state = load_weights(engine, run, checkpoint)
        hosts = ranks.gather_on_first(socket.gethostname())
        with ranks.together():
            if ranks.rank == 0:
                print(run.data.describe(), flush=True)
            assembled = assemble(run, engine, state=state, stop=stop, hosts=hosts, is_stop_requested=is_stop_requested)
        kept = divergence_kept(
            folder if ranks.rank == 0 else None, run.data.corpora.hashes() | run.continuation.hashes()
        )
        with torch_errors_explained(run), kept:
            state = train(assembled, state)
    finally:
        engine.close()
    return Outcome(folder.path, state.step, total_steps, was_there=False)


def join() -> Ranks:
    """Join the other ranks, as a rank that trains.

    On a CPU run: divide the cores among the ranks of this machine, and keep freed memory. On a GPU run: let the thread
    that launches kernels soon get the interpreter back from the one that builds batches, and accumulate bf16 matmuls
    in fp32 throughout.
    """
    if has_gpu():
        sys.setswitchinterval(_GPU_SWITCH_SECONDS)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    else:
        keep_freed_memory()
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // read_launcher().local_world_size))
    return join_ranks()
