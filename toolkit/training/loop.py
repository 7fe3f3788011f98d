"""The training loop: phase, batch, step, hooks. It does not know which objective is running."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NoReturn

from toolkit.core.errors import NonFiniteError
from toolkit.data import advance_digest
from toolkit.engine.engine import Engine, NonFiniteStep
from toolkit.engine.lr import LearningRateSettings, learning_rate_at
from toolkit.objectives.base import Objective
from toolkit.objectives.schedule import Phase, Schedule
from toolkit.parallel.topology import BatchLayout
from toolkit.training.batching import Batcher, Shares
from toolkit.training.state import RunState, StepRecord


class Hook:
    """Something that watches a run. Hooks are called in the order of the list; what one does not need does nothing."""

    def after_step(self, state: RunState, record: StepRecord) -> None:
        """After each update; and once before the first one, with step 0 and no loss."""

    def on_end(self, state: RunState) -> None:
        """After the last step of this process, finished or stopped; not after an error."""

    def close(self) -> None:
        """At the very end, after an error too."""


@dataclass(frozen=True)
class Run:
    """What the loop needs."""

    engine: Engine
    batcher: Batcher
    layout: BatchLayout
    schedule: Schedule
    objectives: Mapping[str, Objective]
    learning_rate: LearningRateSettings
    hooks: Sequence[Hook]
    is_stop_requested: Callable[[], bool]
    name_rows: Callable[[int, tuple[int, ...] | None], str]
    """Names the rows of a step's micro-batches, None for all, for the message about a value that is not finite."""


def train(run: Run, state: RunState) -> RunState:
    """Go on from `state` until the schedule ends or a stop is requested on any rank.

    Raises:
        NonFiniteError: on all ranks, if the loss or the gradient of a step is not finite.
    """
    try:
        state = _steps(run, state)
        for hook in run.hooks:
            hook.on_end(state)
    finally:
        for hook in run.hooks:
            hook.close()
    return state


def _steps(run: Run, state: RunState) -> RunState:
    def objective_at(step: int) -> Objective:
        return run.objectives[run.schedule.phase_at(step).objective]

    with closing(run.batcher.steps(state.step, run.schedule.total_steps, objective_at)) as shares:
        return _train_on(run, state, shares)


def _train_on(run: Run, state: RunState, shares: Shares) -> RunState:
    ranks, total_steps = run.engine.ranks, run.schedule.total_steps
    while state.step < total_steps:
        started = time.perf_counter()
        local = next(shares)
        phase = run.schedule.phase_at(state.step)
        objective = run.objectives[phase.objective]
        targets, tokens, pairs, stops = ranks.sum_counts(*local.counts, int(run.is_stop_requested()))
        if stops:
            break
        if state.step == 0:
            _tell(run, state, _record(state, phase, objective))
            started = time.perf_counter()
        learning_rate = learning_rate_at(state.step, run.learning_rate, total_steps=total_steps)
        try:
            result = run.engine.train_step(
                local.micro_batches, attention=objective.attention, num_targets=targets, learning_rate=learning_rate
            )
        except NonFiniteStep as error:
            _give_up(run, state.step, error)
        hashes_G8 = run.layout.in_step_order(ranks.gather_bytes(local.row_hashes))
        state = RunState(state.step + 1, state.tokens + tokens, advance_digest(state.digest, hashes_G8))
        record = _record(state, phase, objective)
        record.loss, record.grad_norm, record.learning_rate = result.loss, result.grad_norm, learning_rate
        record.targets, record.step_tokens, record.step_pairs = targets, tokens, pairs
        record.seconds = time.perf_counter() - started
        _tell(run, state, record)
    return state


def _record(state: RunState, phase: Phase, objective: Objective) -> StepRecord:
    return StepRecord(
        step=state.step,
        phase=phase.index,
        objective=phase.objective,
        attention=objective.attention,
        is_phase_end=state.step == phase.stop,
        tokens=state.tokens,
        digest=state.digest,
    )


def _tell(run: Run, state: RunState, record: StepRecord) -> None:
    for hook in run.hooks:
        hook.after_step(state, record)


def _give_up(run: Run, step: int, error: NonFiniteStep) -> NoReturn:
    named = [rows for rows in run.engine.ranks.gather(run.name_rows(step, error.micro_batches)) if rows]
    raise NonFiniteError(
        f"step {step + 1}: {error.what} is not finite. Rows of the step: {'; '.join(named)}.\n"
        "Nothing of this step was saved; the last checkpoint is whole. Try a smaller lr.peak, a longer warm-up, "
        'or precision="fp32".'
    ) from error
