"""The training loop: phase, batch, step, evaluation, checkpoint, hooks. It does not know which objective is running.

Hooks run on one rank and use no collectives, so any of them may fail on that rank only. Its error affects no weight: it
is kept, ends the run like a request to stop, and is raised by all ranks once they have saved. Both travel with the loss
of the next step: on this thread, a plain step has no exchanges other than the engine's.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from toolkit.engine.engine import Engine
from toolkit.engine.step import LossTerm, NonFiniteStep
from toolkit.objectives.base import Objective, at_progress
from toolkit.objectives.mixture import StepMix, attention_of
from toolkit.run.division import BatchPlans
from toolkit.run.step_plan import StepPlan
from toolkit.training.batching import Batcher
from toolkit.training.evaluation import Evaluator
from toolkit.training.hooks import Hook, HookList
from toolkit.training.rank_errors import RankErrors
from toolkit.training.run_state import RunState, StepInfo, StepMetrics
from toolkit.training.saving import CheckpointSaver
from toolkit.training.slow_ranks import ForwardTime
from toolkit.training.spikes import SpikePolicy
from toolkit.training.steps_ahead import StepsAhead, steps_ahead


@dataclass(frozen=True)
class Run:
    """Parts of a run, as the loop needs them."""

    engine: Engine
    batcher: Batcher
    layouts: BatchPlans
    plan: StepPlan
    stop: int
    """Number of updates after which this process ends: the schedule's, or fewer."""
    objectives: Mapping[str, Objective]
    evaluator: Evaluator | None
    spikes: SpikePolicy
    saver: CheckpointSaver
    hooks: Sequence[Hook]
    is_stop_requested: Callable[[], bool]

    def mix_at(self, step: int) -> StepMix:
        """The objectives of the update with 0-based index `step`."""
        phase = self.plan.schedule.phase_at(step)
        progress = phase.progress_at(step)
        return StepMix(
            phase.objectives,
            tuple(at_progress(self.objectives[name], progress) for name in phase.objectives),
            self.plan.coefficients(step),
        )


def train(run: Run, state: RunState) -> RunState:
    """Train from `state` up to `run.stop`, or until a stop is requested on any rank.

    Raises:
        NonFiniteError: the loss or the gradient of a step is not finite; on all ranks.
        LossSpikeError: the loss of a step is a spike, and `train.on_spike` is "stop"; on all ranks.
        UserError: reading data, logging or saving failed on any rank; on all ranks. OSError likewise. If a hook
            failed, the state it saw or the next one is saved.
    """
    errors = RankErrors(run.engine.ranks)
    hooks = HookList(run.hooks, errors)
    try:
        ranks, first, last = run.engine.ranks, state.step, run.stop
        own = ForwardTime(run.engine.module, ranks.device).take
        steps = steps_ahead(run.batcher, ranks, run.mix_at, start=first, stop=last, own_seconds=own)
        with closing(steps) as coming:
            state = _train(run, state, coming, hooks, errors)
        run.saver.save_last(state, hooks, errors)
        hooks.each(lambda hook: hook.on_end(state))
        errors.raise_agreed()
    except BaseException as error:
        run.saver.close(error)
        hooks.close(error)
        raise
    hooks.close(None)
    errors.raise_agreed()
    return state


def _train(run: Run, state: RunState, coming: StepsAhead, hooks: HookList, errors: RankErrors) -> RunState:
    if errors.should_stop(run.is_stop_requested):
        return state
    schedule = run.plan.schedule
    attention, is_start = attention_of(run.mix_at(state.step).objectives), state.step == run.plan.first_step
    info = StepInfo(state, schedule.phase_at(state.step), attention, is_start)
    hooks.each(lambda hook: hook.on_start(info))
    run.engine.module.set_rope(run.plan.model_at(state.step))
    if info.is_start:
        state = _evaluate_if_due(run, info, hooks)
    is_stopping = errors.should_stop(run.is_stop_requested)
    while state.step < run.stop and not is_stopping:
        run.saver.save_if_due(state, hooks)
        started = time.perf_counter()
        step = next(coming)
        counts, phase, mix = step.counts, schedule.phase_at(state.step), step.mix
        lr = run.plan.learning_rate(state.step)
        thresholds = run.spikes.thresholds(mix.names, state.losses_in(phase))
        largest = map(run.spikes.largest_applied, thresholds.values())
        run.engine.module.set_rope(run.plan.model_at(state.step))
        if run.plan.resets_optimizer(state.step):
            run.engine.reset_moments()
        try:
            result = run.engine.train_step(
                step.micro_batches,
                terms=[LossTerm(*term) for term in zip(counts.weights_P, mix.coefficients, largest, strict=True)],
                learning_rate=lr,
                flags=lambda: (errors.has_one or run.is_stop_requested(), run.saver.is_writing),
            )
        except NonFiniteStep as error:
            rows = run.batcher.name_rows(state.step, error.micro_batches)
            errors.raise_non_finite(error, step=state.step + 1, rows=rows)
        is_stopping, is_writing = result.flags
        means = {
            name: mean for name, mean, targets in zip(mix.names, result.means, counts.targets_P, strict=True) if targets
        }
        spike = ""
        if high := [name for name, mean in means.items() if mean > thresholds[name]]:
            rows = errors.name_rows(run.batcher.name_rows(state.step, None))
            spike = run.spikes.report(state.step + 1, high[0], means, thresholds, rows)
        hashes_G8 = run.layouts.at(state.step).in_step_order(step.row_hashes_RL8)
        state = state.after_step(phase, counts, hashes_G8, means=means)
        info = StepInfo(state, phase, attention_of(mix.objectives))
        measured = (counts, time.perf_counter() - started, spike, result.is_applied, means, step.own_seconds_W)
        metrics = StepMetrics(result.loss, result.grad_norm, lr, *measured)
        state = _evaluate_if_due(run, info, hooks)
        hooks.each(lambda hook: hook.after_step(info, metrics))  # noqa: B023
        if not is_writing:
            run.saver.advance(hooks)
        # These take so long that a request to stop may arrive meanwhile.
        if (run.evaluator is not None and run.evaluator.is_due(info)) or run.saver.is_due(state):
            is_stopping |= errors.should_stop(run.is_stop_requested)
    return state


def _evaluate_if_due(run: Run, info: StepInfo, hooks: HookList) -> RunState:
    if run.evaluator is None or not run.evaluator.is_due(info):
        return info.state
    # Errors of its own: an earlier hook error does not cost the step its evaluation.
    losses, of_corpora = run.evaluator.losses(info.step, RankErrors(run.engine.ranks))
    hooks.each(lambda hook: hook.after_evaluation(info, {**losses, **of_corpora}))
    run.saver.after_evaluation(state := info.state.after_evaluation(losses))
    return state
