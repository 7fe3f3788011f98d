"""Number of pretraining steps in a quickstart: fewer on a CPU on which all of them would take too long.

Steps of both phases are timed once per quickstart, on all the ranks' cores, in CPU time, which shows how fast the CPU
is rather than how busy. The choice is stored in the quickstart's folder, so that a restarted job keeps it.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from toolkit.core.allocator import keep_freed_memory
from toolkit.core.environment import given_threads
from toolkit.core.types import AttentionKind
from toolkit.engine import gpus
from toolkit.engine.precision import choose_precision, cpu_threads
from toolkit.run.settings import RunSettings

_SHARES = (1.0, 5 / 6, 2 / 3)
"""Fractions of the preset's steps. Half are too few for a clear lead over random twins in fine-tuning."""
_MOST_SECONDS = 360.0
"""Time limit of the whole job on two cores."""
_SPARE = 1.1
_OTHER_WORK = 520
"""Cost of the rest of the job, in steps: starting ranks, evaluation, conversion, six fine-tuning runs, the report."""
_TARGET_SHARES = {AttentionKind.CAUSAL: 1.0, AttentionKind.BIDIRECTIONAL: 0.4}
"""Fraction of a row's positions that are targets, by phase."""
_OF_FEWER = {
    "lr.peak": 3e-3,
    "schedule": '[{objective="clm", fraction=0.6}, {objective="mlm", fraction=0.4}]',
}
"""Settings that work better with fewer steps."""
_TIMED = 2


@dataclass(frozen=True)
class StepChoice:
    """Number of steps to train, out of `all_steps`, and the seconds per step that decided it (None: not measured)."""

    steps: int
    all_steps: int
    seconds: float | None = None

    @property
    def reason(self) -> str:
        """Sentence for the report; empty if nothing was measured."""
        if self.seconds is None:
            return ""
        measured = f"a training step takes {self.seconds:.2f} s on this CPU (measured)"
        if self.steps == self.all_steps:
            return f"{measured}: the job has time for all {self.all_steps:,} steps"
        minutes, expected = _MOST_SECONDS / 60, _job_seconds(self.steps, self.seconds)
        fewer = f"{measured}: {self.all_steps:,} steps would take the job over {minutes:.0f} minutes"
        if expected <= _MOST_SECONDS:
            return f"{fewer}, so {self.steps:,} are trained"
        return f"{fewer}; {self.steps:,} are trained, fewer would teach too little: about {expected / 60:.0f} minutes"

    def overrides(self, settings: RunSettings) -> list[str]:
        """Overrides of the preset: settings in steps shrink in proportion, and `_OF_FEWER` makes it learn faster."""
        if self.steps == self.all_steps:
            return []
        counted = {
            "lr.warmup_steps": settings.lr.warmup_steps,
            "lr.decay_steps": settings.lr.decay_steps,
            "checkpoint.every": settings.checkpoint.every,
            "eval.every": settings.eval.every,
        }
        share = self.steps / self.all_steps
        shorter = {key: round(number * share) for key, number in counted.items() if number is not None}
        return [f"{key}={value}" for key, value in {"train.steps": self.steps, **shorter, **_OF_FEWER}.items()]


def choose_steps(all_steps: int, seconds: float) -> StepChoice:
    """Choose as many steps as fit in six minutes at `seconds` per step, but at least two thirds of `all_steps`."""
    numbers = [round(share * all_steps) for share in _SHARES]
    fitting = (number for number in numbers if _SPARE * _job_seconds(number, seconds) <= _MOST_SECONDS)
    return StepChoice(next(fitting, numbers[-1]), all_steps, seconds)


def measure_choice(settings: RunSettings, *, ranks: int) -> StepChoice:
    """Choose the number of steps for this machine, whose cores `ranks` share; all steps on a GPU."""
    all_steps = settings.train.steps
    assert all_steps is not None
    if gpus.has_gpu():
        return StepChoice(all_steps, all_steps)
    return choose_steps(all_steps, seconds_of_step(settings, ranks=ranks))


def seconds_of_step(settings: RunSettings, *, ranks: int) -> float:
    """Seconds that the ranks need per step, averaged over causal and bidirectional attention; takes a few seconds."""
    import torch

    keep_freed_memory()
    from toolkit.model.encoder import Encoder
    from toolkit.model.initialization import initialize_

    num_cores = len(os.sched_getaffinity(0))
    threads = ranks * (given_threads() or max(1, num_cores // ranks))
    precision, _ = choose_precision(2, ranks_per_machine=ranks)
    encoder = Encoder(settings.model).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    initialize_(encoder, seed=0)
    assert settings.model.vocab_size is not None
    rows, length = settings.train.global_batch_rows, settings.data.sequence_length
    ids_BS = torch.arange(rows * length).view(rows, length) % settings.model.vocab_size
    segments_BS = torch.ones_like(ids_BS)

    def step(attention: AttentionKind) -> None:
        positions_N = torch.arange(round(rows * length * _TARGET_SHARES[attention]))
        labels_N = ids_BS.flatten()[positions_N]
        encoder(ids_BS, segments_BS, attention, positions_N=positions_N, labels_N=labels_N, scale=1.0).backward()

    with cpu_threads(threads):
        kinds = list(_TARGET_SHARES)
        return sum(_fastest(lambda: step(kind)) for kind in kinds) / len(kinds) / min(threads, num_cores)  # noqa: B023


def _fastest(step: Callable[[], None]) -> float:
    """CPU seconds of the fastest of `_TIMED` steps, after a first one that builds kernels."""
    seconds = []
    for _ in range(1 + _TIMED):
        started = time.process_time()
        step()
        seconds.append(time.process_time() - started)
    return min(seconds[1:])


def _job_seconds(steps: int, seconds: float) -> float:
    return (steps + _OTHER_WORK) * seconds
