"""Steps, each built and agreed on by all ranks while the one before it is trained on.

Both happen in a thread. It has a process group of its own, so that its exchanges and those of the main thread never
meet; a plain step exchanges nothing but gradients, their norm and one sum on the main thread.

Shapes: R data-parallel ranks, L rows of one of them in a step.
"""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from toolkit.engine.ranks import GatherNumbers, Ranks
from toolkit.engine.step import MicroBatch
from toolkit.objectives.mixture import StepMix
from toolkit.training.batching import Batcher
from toolkit.training.run_state import StepCounts


@dataclass(frozen=True)
class AgreedStep:
    """What one rank runs in one step, and what all ranks know of it before it begins."""

    mix: StepMix
    micro_batches: tuple[MicroBatch, ...]
    counts: StepCounts
    """Over all ranks."""
    row_hashes_RL8: npt.NDArray[np.uint8]
    """By data rank."""


StepsAhead = Generator[AgreedStep, None, None]
"""One step after the other. Whoever stops early closes it, on all ranks after the same step."""


def steps_ahead(
    batcher: Batcher, ranks: Ranks, mix_at: Callable[[int], StepMix], *, start: int, stop: int
) -> StepsAhead:
    """The updates `start` to `stop` - 1; collective where it begins.

    If any rank could not build its part of a step, a ToolkitError, or an OSError likewise, on every rank.
    """

    def enter_thread() -> None:
        # Each thread has its own current GPU, and pinning memory makes a context on it.
        if ranks.device.type == "cuda":
            torch.cuda.set_device(ranks.device)

    with ranks.gathering() as gather, ThreadPoolExecutor(max_workers=1, initializer=enter_thread) as thread:
        begun = (thread.submit(_agree, batcher, ranks, gather, step, mix_at) for step in range(start, stop))
        awaited = next(begun, None)
        while awaited is not None:
            agreed, error = awaited.result()
            awaited = next(begun, None)
            if agreed is not None:
                yield agreed
            else:
                _raise_everywhere(error, ranks)


def _raise_everywhere(error: Exception | None, ranks: Ranks) -> None:
    with ranks.together():
        if error is not None:
            raise error


def _agree(
    batcher: Batcher, ranks: Ranks, gather: GatherNumbers, step: int, mix_at: Callable[[int], StepMix]
) -> tuple[AgreedStep | None, Exception | None]:
    """Build this rank's part, and take part in the exchange whether that failed or not: the others wait in it.

    No step where some rank could not build its part, and this rank's own error.
    """
    local, error = None, None
    try:
        mix = mix_at(step)
        local = batcher.step(step, mix)
    except Exception as raised:
        error = raised
    nothing = (0,) * batcher.num_objectives(step)
    counts = (local.counts if local else StepCounts(nothing, nothing)).packed()
    hashes_L8 = local.row_hashes if local else np.zeros((batcher.samples(step).size, 8), dtype=np.uint8)
    gathered = gather(np.concatenate([[error is not None], counts, hashes_L8.view(np.int64).ravel()]))
    if local is None or gathered[:, 0].any():
        return None, error
    by_copy = ranks.one_of_each_copy(gathered[:, 1:])
    summed = StepCounts.summed(by_copy[:, : len(counts)])
    hashes_RL8 = np.ascontiguousarray(by_copy[:, len(counts) :]).view(np.uint8).reshape(len(by_copy), -1, 8)
    return AgreedStep(mix, local.micro_batches, summed, hashes_RL8), None
