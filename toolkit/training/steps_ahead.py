"""Steps, each built and agreed on by all ranks while the step before it is trained.

Both happen in a thread. It has its own process group, so that its exchanges and the main thread's never mix; on the
main thread, a plain step exchanges only gradients, their norm and one sum.

Shapes: R data-parallel ranks, L rows of one of them in a step.
"""

import time
from collections.abc import Callable, Generator, Sequence
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
    """One rank's work in a step, and what all ranks agreed on before it begins."""

    mix: StepMix
    micro_batches: tuple[MicroBatch, ...]
    counts: StepCounts
    """Over all ranks."""
    row_hashes_RL8: npt.NDArray[np.uint8]
    """Hashes of the rows, by data rank."""
    own_seconds_W: Sequence[float]
    """Each rank's own seconds in an earlier step: as passed to `steps_ahead` there, plus the wait for its own part."""
    built_at: float
    """When this rank had built its part, by the performance counter."""


StepsAhead = Generator[AgreedStep, None, None]
"""One step after the other. Close it to stop early, on all ranks after the same step."""


def steps_ahead(
    batcher: Batcher,
    ranks: Ranks,
    mix_at: Callable[[int], StepMix],
    *,
    start: int,
    stop: int,
    own_seconds: Callable[[], float] = float,
) -> StepsAhead:
    """Yield the updates `start` to `stop` - 1; collective at its start. `own_seconds` are of this rank's last step.

    Raise a ToolkitError, or an OSError, on every rank if any rank could not build its part of a step.
    """

    def enter_thread() -> None:
        # Each thread has its own current GPU, and pinning memory creates a context on it.
        if ranks.device.type == "cuda":
            torch.cuda.set_device(ranks.device)

    with ranks.gathering() as gather, ThreadPoolExecutor(max_workers=1, initializer=enter_thread) as thread:
        waited = 0.0
        begun = (
            thread.submit(_agree, batcher, ranks, gather, step, mix_at, own_seconds() + waited)
            for step in range(start, stop)
        )
        awaited = next(begun, None)
        while awaited is not None:
            began = time.perf_counter()
            agreed, error = awaited.result()
            # Only for its own part: another rank's may be the late one.
            waited = max(0.0, agreed.built_at - began) if agreed else 0.0
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
    batcher: Batcher, ranks: Ranks, gather: GatherNumbers, step: int, mix_at: Callable[[int], StepMix], seconds: float
) -> tuple[AgreedStep | None, Exception | None]:
    """Build this rank's part, and join the exchange whether that failed or not: the others wait in it.

    The step is None if any rank could not build its part; the error is this rank's own, if any.
    """
    local, error = None, None
    try:
        mix = mix_at(step)
        local = batcher.step(step, mix)
    except Exception as raised:
        error = raised
    built_at = time.perf_counter()
    nothing = (0,) * batcher.num_objectives(step)
    counts = (local.counts if local else StepCounts(nothing, nothing)).packed()
    hashes_L8 = local.row_hashes if local else np.zeros((batcher.samples(step).size, 8), dtype=np.uint8)
    mine = [error is not None, round(1e6 * seconds)]
    gathered = gather(np.concatenate([mine, counts, hashes_L8.view(np.int64).ravel()]))
    if local is None or gathered[:, 0].any():
        return None, error
    by_copy = ranks.one_of_each_copy(gathered[:, 2:])
    summed = StepCounts.summed(by_copy[:, : len(counts)])
    hashes_RL8 = np.ascontiguousarray(by_copy[:, len(counts) :]).view(np.uint8).reshape(len(by_copy), -1, 8)
    own_seconds_W = (gathered[:, 1] / 1e6).tolist()
    return AgreedStep(mix, local.micro_batches, summed, hashes_RL8, own_seconds_W, built_at), None
