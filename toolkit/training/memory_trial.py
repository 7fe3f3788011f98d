"""Memory of a step: micro-batches that fit, tried before the first step, and what is said where it runs out later."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from toolkit.core.draws import Draws
from toolkit.core.errors import SettingsError
from toolkit.core.text import root_cause
from toolkit.data import TokenRows
from toolkit.engine.engine import Engine
from toolkit.run.division import divide_smaller, parts_in_words, rank_memories
from toolkit.run.load import to_toml
from toolkit.run.resolve import ResolvedRun
from toolkit.training.batching import STATIC_TARGETS_MULTIPLE, make_micro_batch
from toolkit.training.problem import Problem
from toolkit.training.shared_inputs import agree

_COMPILER = ("torch._dynamo", "torch._inductor")


def is_limited(device: torch.device) -> bool:
    """Memory of this device ends with an error that a smaller micro-batch cures; a CPU's ends with a killed process."""
    return device.type == "cuda"


def fit_micro_batches(run: ResolvedRun, engine: Engine) -> ResolvedRun:
    """The run with micro-batches that every rank has memory for: its own, or the next smaller that divide. Collective.

    Results do not depend on them. At ZeRO stage 3 and under model parallelism, whose passes are collective, there is no
    trial.
    """
    ranks, parallel = engine.ranks, run.settings.parallel
    if not is_limited(ranks.device) or engine.zero_stage == 3 or parallel.tp * parallel.pp > 1:
        return run
    while True:
        with ranks.together(), torch_errors_explained(run):
            found = _try_largest(run, engine)
        if (reason := agree(ranks, found)) is None:
            return run
        gc.collect()
        torch.cuda.empty_cache()
        with ranks.together():
            smaller = divide_smaller(run, run.division)
            if smaller is None:
                raise _out_of_memory(run, reason)
            if ranks.rank == 0:
                run.folder.write_resolved(to_toml(run.settings), dict(smaller.ds_config))
                rows = smaller.batch.micro_batch_rows
                print(f"{_described(run, reason)} Trying train.micro_batch_rows={rows}.", flush=True)
        run = replace(run, division=smaller)


@contextmanager
def torch_errors_explained(run: ResolvedRun) -> Iterator[None]:
    """Turn what torch raises out of memory, and what its compiler raises, into errors with a remedy."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(run, _words(error)) from error
    except RuntimeError as error:
        if not type(error).__module__.startswith(_COMPILER):
            raise
        raise SettingsError(
            f"torch.compile failed: {root_cause(error)}.\nTo train without it: --set train.compile=false."
        ) from error


def _try_largest(run: ResolvedRun, engine: Engine) -> str | None:
    """What torch says where the largest micro-batch of any objective needs more memory than there is; None: it fits."""
    rows, length = run.division.batches.largest_micro_batch
    vocabulary, device = run.settings.model.vocab_size, engine.ranks.device
    assert vocabulary is not None
    tokens_BS = (np.arange(rows * length, dtype=np.int32) % vocabulary).reshape(rows, length)
    draws = Draws(run.settings.run.seed, np.arange(rows), num_columns=length)
    try:
        # What a step has besides, and DeepSpeed may allocate in the first one only.
        kept = torch.empty(_bytes_to_come(run, engine), dtype=torch.uint8, device=device)
        for objective in run.data.objectives.values():
            problem = Problem.of_one(objective, TokenRows(tokens_BS, np.ones_like(tokens_BS)), draws)
            engine.rehearse(make_micro_batch(problem, 1, device, STATIC_TARGETS_MULTIPLE))
        del kept
    except torch.OutOfMemoryError as error:
        return _words(error)
    return None


def _bytes_to_come(run: ResolvedRun, engine: Engine) -> int:
    """Bytes of what a step holds besides activations, not allocated yet; a trial has gradients of its own."""
    (memory,) = rank_memories(run, run.division)
    states = memory.weights + memory.optimizer + memory.gradients + memory.communication
    gradients = sum(each.numel() * each.element_size() for each in engine.module.parameters())
    return max(0, states - gradients - torch.cuda.memory_allocated(engine.ranks.device))


def _words(error: torch.OutOfMemoryError) -> str:
    """What torch asked for and had, without its advice."""
    return str(error).partition(" If reserved")[0].strip()


def _described(run: ResolvedRun, reason: str) -> str:
    needed = max(rank_memories(run, run.division), key=lambda memory: memory.total)
    return (
        f"out of memory with {run.division.batch.micro_batch_rows} rows a micro-batch, for which "
        f"{needed.total / 1e9:.1f} GB were expected ({parts_in_words(needed)}): {reason}"
    )


def _out_of_memory(run: ResolvedRun, reason: str) -> SettingsError:
    smaller = divide_smaller(run, run.division)
    fewer = "" if smaller is None else f"train.micro_batch_rows={smaller.batch.micro_batch_rows}, "
    return SettingsError(
        f"{_described(run, reason)}\nSet {fewer}train.activation_checkpointing or parallel.tp, or take a DeepSpeed "
        "file of a higher stage."
    )
