"""The run as the loop wants it: batches, evaluation, saving and hooks around an engine."""

import math
from collections.abc import Callable, Sequence

from toolkit.engine.engine import Engine
from toolkit.run.metrics import BestStep, best_step
from toolkit.run.resolve import ResolvedRun
from toolkit.training.batching import STATIC_TARGETS_MULTIPLE, Batcher, EvaluationBatches, StepRows
from toolkit.training.copying import CopyHook
from toolkit.training.evaluation import Evaluator
from toolkit.training.hooks import ConsoleHook, Hook, RetentionHook
from toolkit.training.logged_steps import LogHook, open_writers
from toolkit.training.loop import Run
from toolkit.training.run_state import RunState
from toolkit.training.saving import CheckpointSaver
from toolkit.training.slow_ranks import SlowRankHook
from toolkit.training.speed import Speed, peak_flops_of
from toolkit.training.spikes import SpikePolicy


def assemble(
    run: ResolvedRun,
    engine: Engine,
    *,
    state: RunState,
    stop: int,
    hosts: Sequence[str],
    is_stop_requested: Callable[[], bool],
    lowest_loss: float = math.inf,
) -> Run:
    """The run as the loop wants it, from a state on.

    `lowest_loss` is that of `checkpoint.keep_best` so far; `hosts` are by rank; only rank 0 needs them.
    """
    settings, data, plan, ranks = run.settings, run.data, run.plan, engine.ranks
    parts, batches = [part for part in dict.fromkeys(data.training) if part.rows], run.division.batches
    streams = [part.stream() for part in parts]
    is_static = run.division.is_compiled or ranks.device.type == "cuda"
    multiple, evaluator = STATIC_TARGETS_MULTIPLE if is_static else 1, None

    def rows_at(step: int) -> StepRows:
        number = parts.index(data.training[plan.schedule.phase_at(step).index])
        return StepRows(streams[number], parts[number].paths, plan.position(step), batches.at(step), plan.dealt(step))

    evaluated = {
        name: EvaluationBatches(
            rows,
            num_rows=min(settings.eval.rows or rows.num_rows, rows.num_rows),
            micro_batch_rows=run.division.batch.micro_batch_rows,
            seed=settings.run.seed,
            data_rank=ranks.data_rank,
            data_parallel_size=ranks.data_parallel_size,
            device=ranks.device,
            targets_multiple=multiple,
        )
        for name, rows in data.validation_rows.items()
    }
    if evaluated:
        evaluator = Evaluator(engine, evaluated, data.evaluated, every=settings.eval.every)
    return Run(
        engine=engine,
        batcher=Batcher(
            rows_at,
            data_rank=ranks.data_rank,
            seed=settings.run.seed,
            device=ranks.device,
            targets_multiple=multiple,
            model=settings.model,
        ),
        layouts=batches,
        plan=plan,
        stop=stop,
        objectives=data.objectives,
        evaluator=evaluator,
        spikes=SpikePolicy(settings.train.on_spike, settings.train.spike_deviations),
        saver=CheckpointSaver(run, engine, first_step=state.step, lowest_loss=lowest_loss),
        hooks=_hooks(run, engine, state, stop, hosts) if ranks.rank == 0 else [],
        is_stop_requested=is_stop_requested,
    )


def _hooks(run: ResolvedRun, engine: Engine, state: RunState, stop: int, hosts: Sequence[str]) -> list[Hook]:
    settings = run.settings
    speed = Speed(settings.model, peak_flops=peak_flops_of(settings, engine.ranks))
    writers = open_writers(run, resumed_step=None if state.step == run.plan.first_step else state.step)
    log = LogHook(writers, every=settings.log.every, speed=speed)
    console = ConsoleHook(run.plan, run.data.objectives, stop=stop)
    slow = SlowRankHook(hosts, num_stages=settings.parallel.pp, say=console.say)
    copy_to = settings.checkpoint.copy_to
    copies = None if copy_to is None else CopyHook(run.folder, copy_to, say=console.say)

    def best() -> BestStep | None:
        name, hashes = settings.best_by, run.data.corpora.hashes()
        return None if name is None else best_step(run.folder, name, hashes, rows=settings.eval.rows)

    retention = RetentionHook(
        run.folder.checkpoints, settings.checkpoint, say=console.say, in_use=copies or (), best=best
    )
    return [log, console, slow, *([] if copies is None else [copies]), retention]
