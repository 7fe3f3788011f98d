"""Memory of a step: a trial of micro-batches before the first step, and the error if memory runs out later."""

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from toolkit.core.errors import SettingsError
from toolkit.core.text import counted, root_cause
from toolkit.engine.engine import Engine
from toolkit.engine.ranks import Ranks
from toolkit.model.segments import SegmentLayout
from toolkit.parallel.launcher import read_launcher
from toolkit.run.division import divide_smaller, fit_main_memory, rank_memories
from toolkit.run.resolve import ResolvedRun
from toolkit.training.agreement import agree
from toolkit.training.batching import STATIC_TARGETS_MULTIPLE


def is_limited(device: torch.device) -> bool:
    """True if running out of memory is an error that a smaller micro-batch cures; on a CPU, the process is killed."""
    return device.type == "cuda"


def fit_micro_batches(run: ResolvedRun, engine: Engine) -> ResolvedRun:
    """The run with micro-batches that fit on every rank: its own, or the next smaller that divide its rows. Collective.

    Results do not depend on them. There is no trial at ZeRO stage 3 and under model parallelism, whose passes are
    collective, nor on a CPU, where a process that takes too much is killed: there `fit_in_main_memory` decides.
    """
    ranks, parallel = engine.ranks, run.settings.parallel
    if engine.zero_stage == 3 or parallel.tp * parallel.pp > 1 or not is_limited(ranks.device):
        return run
    while True:
        with ranks.together(), torch_errors_explained(run):
            found = _try_largest(run, engine)
        if (reason := agree(ranks, found)) is None:
            return run
        gc.collect()
        torch.cuda.empty_cache()
        if run.division.is_compiled:
            # If graphs of the larger shape were kept, those of the next one would have dynamic sizes.
            torch._dynamo.reset()
        with ranks.together():
            smaller = divide_smaller(run, run.division)
            if smaller is None:
                raise _out_of_memory(run, reason)
            if ranks.rank == 0:
                run.folder.write_json(run.folder.ds_config_file, smaller.ds_config)
                rows = smaller.batch.micro_batch_rows
                print(f"{_described(run, reason)} Trying train.micro_batch_rows={rows}.", flush=True)
        run = replace(run, division=smaller)


def fit_in_main_memory(run: ResolvedRun, ranks: Ranks) -> ResolvedRun:
    """The run with the micro-batches that `fit_main_memory` gives rank 0; unchanged on GPUs. Collective.

    Not done in the process that starts the ranks, since the formula needs torch.
    """
    fitting = run.division
    if is_limited(ranks.device):
        return run
    with ranks.together():
        if ranks.rank == 0:
            fitting = fit_main_memory(run, run.division, ranks_here=read_launcher().local_world_size)
        if fitting is not run.division:
            run.folder.write_json(run.folder.ds_config_file, fitting.ds_config)
            print(fitting.choices[-1], flush=True)
    rows, division = ranks.broadcast(fitting.batch.micro_batch_rows), run.division
    while division.batch.micro_batch_rows > rows and (smaller := divide_smaller(run, division)) is not None:
        division = smaller
    return replace(run, division=division)


@contextmanager
def torch_errors_explained(run: ResolvedRun) -> Iterator[None]:
    """Turn torch's out-of-memory errors and its compiler's errors into errors with a remedy."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(run, _words(error)) from error
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        remedy = "To train without it: --set train.compile=false."
        raise SettingsError(f"torch.compile failed: {root_cause(error)}.\n{remedy}") from error


def _try_largest(run: ResolvedRun, engine: Engine) -> str | None:
    """Torch's message if a micro-batch of the largest shape needs more memory than there is; None if it fits.

    Every position is a target. DeepSpeed is bypassed: its hooks see no gradient, and no rank waits for another.
    """
    shape_BS, device = run.division.batches.largest_micro_batch, engine.ranks.device
    parameters, (memory,) = list(engine.module.parameters()), rank_memories(run, run.division)
    positions_N = np.arange(math.prod(shape_BS))
    # Other memory of a step, part of which DeepSpeed allocates only in the first one.
    states = memory.weights + memory.optimizer + memory.gradients + memory.communication
    here = torch.cuda.memory_allocated(device) + sum(each.numel() * each.element_size() for each in parameters)
    try:
        to_come = torch.empty(max(0, states - here), dtype=torch.uint8, device=device)
        ids_BS = torch.zeros(shape_BS, dtype=torch.int64, device=device)
        segments_BS, repeats = np.ones(shape_BS, np.int64), STATIC_TARGETS_MULTIPLE
        layout = SegmentLayout.from_segments(segments_BS, device=device, positions_N=positions_N, most_repeats=repeats)
        targets = {"positions_N": torch.as_tensor(positions_N, device=device), "labels_N": ids_BS.flatten()}
        for kind in dict.fromkeys(objective.attention for objective in run.data.objectives.values()):
            loss = engine.module(ids_BS, layout, kind, **targets, scale=1.0)
            torch.autograd.grad(loss, parameters, allow_unused=True)
        del to_come
    except torch.OutOfMemoryError as error:
        return _words(error)
    return None


def _words(error: torch.OutOfMemoryError) -> str:
    """Torch's message on requested and available memory, without its advice."""
    return str(error).partition(" If reserved")[0].strip()


def _described(run: ResolvedRun, reason: str) -> str:
    needed = max(rank_memories(run, run.division), key=lambda memory: memory.total)
    return (
        f"out of memory with {counted(run.division.batch.micro_batch_rows, 'row')} a micro-batch, for which "
        f"{needed.total / 1e9:.1f} GB were expected ({needed.describe()}): {reason}"
    )


def _out_of_memory(run: ResolvedRun, reason: str) -> SettingsError:
    smaller = divide_smaller(run, run.division)
    fewer = "" if smaller is None else f"train.micro_batch_rows={smaller.batch.micro_batch_rows}, "
    return SettingsError(
        f"{_described(run, reason)}\nSet {fewer}train.activation_checkpointing or parallel.tp, or take a DeepSpeed "
        "file of a higher stage."
    )
