"""The run as the loop wants it: batches, evaluation, saving and hooks around an engine."""

from collections.abc import Callable
from functools import partial

import toolkit
from toolkit.checkpoint.manifest import CheckpointManifest, LayoutEntry, VocabularyEntry
from toolkit.engine.engine import Engine
from toolkit.run.identity import snapshot
from toolkit.run.load import DeclaredRun
from toolkit.run.metrics import MetricsFile
from toolkit.run.resolve import ResolvedRun
from toolkit.run.settings import CompleteSettings
from toolkit.training.batching import STATIC_TARGETS_MULTIPLE, Batcher, EvaluationBatches, StepRows
from toolkit.training.evaluation import Evaluator
from toolkit.training.hooks import ConsoleHook, Hook, RetentionHook
from toolkit.training.logged_steps import LineWriter, LogHook, TensorBoardWriter, add_probe, close_all
from toolkit.training.loop import Run
from toolkit.training.probing import ProbeHook, is_probed, missing_probes
from toolkit.training.run_state import RunState
from toolkit.training.saving import CheckpointSaver
from toolkit.training.speed import Speed, known_peak_flops
from toolkit.training.spikes import SpikePolicy
from toolkit.training.wandb_writer import WandbWriter


def assemble(
    run: ResolvedRun,
    engine: Engine,
    *,
    state: RunState,
    origin: dict[str, str],
    is_stop_requested: Callable[[], bool],
) -> Run:
    """The run as the loop wants it, from a state on; manifests name the origin of the weights."""
    settings, data, plan, ranks, rows = run.settings, run.data, run.plan, engine.ranks, run.data.validation_rows
    parts, batches = list(dict.fromkeys(data.training)), run.batches
    streams = [part.stream() for part in parts]
    is_static = run.division.is_compiled or ranks.device.type == "cuda"
    multiple, evaluator = STATIC_TARGETS_MULTIPLE if is_static else 1, None

    def rows_at(step: int) -> StepRows:
        number = parts.index(data.training[plan.schedule.phase_at(step).index])
        return StepRows(streams[number], parts[number].paths, plan.position(step), batches.at(step))

    if rows is not None:
        evaluated = EvaluationBatches(
            rows,
            num_rows=min(settings.eval.rows or rows.num_rows, rows.num_rows),
            micro_batch_rows=run.division.batch.micro_batch_rows,
            seed=settings.run.seed,
            data_rank=ranks.data_rank,
            data_parallel_size=ranks.data_parallel_size,
            device=ranks.device,
            targets_multiple=multiple,
        )
        evaluator = Evaluator(engine, evaluated, data.evaluated, every=settings.eval.every)
    return Run(
        engine=engine,
        batcher=Batcher(
            rows_at,
            data_rank=ranks.data_rank,
            seed=settings.run.seed,
            device=ranks.device,
            targets_multiple=multiple,
        ),
        layouts=batches,
        plan=plan,
        objectives=data.objectives,
        evaluator=evaluator,
        spikes=SpikePolicy(settings.train.on_spike, settings.train.spike_deviations),
        saver=CheckpointSaver(
            engine,
            run.folder.checkpoints,
            settings.checkpoint,
            manifest=_manifest(run, engine, origin),
            tokenizer_folder=run.folder.tokenizer,
            first_step=state.step,
            plan=plan,
        ),
        hooks=_hooks(run, engine, state, is_stop_requested) if ranks.rank == 0 else [],
        is_stop_requested=is_stop_requested,
    )


def finish_probes(run: DeclaredRun, *, is_stop_requested: Callable[[], bool]) -> None:
    """Make the probes that are missing from a finished run; for rank 0."""
    step = run.plan.schedule.total_steps
    if not missing_probes(run, up_to=step):
        return
    writers = _writers(run, resumed_step=step)
    probes = ProbeHook(
        run,
        report=partial(add_probe, writers),
        say=partial(print, flush=True),
        is_stop_requested=is_stop_requested,
    )
    try:
        probes.add_missing(up_to=step)
        probes.finish()
    finally:
        probes.close(None)
        close_all(writers, None)


def _hooks(run: ResolvedRun, engine: Engine, state: RunState, is_stop_requested: Callable[[], bool]) -> list[Hook]:
    """Watchers of the run on rank 0."""
    settings = run.settings
    speed = Speed(settings.model, peak_flops=_peak_flops(settings, engine))
    writers = _writers(run, resumed_step=None if state.step == run.plan.schedule.first_step else state.step)
    console = ConsoleHook(run.plan, run.data.objectives)
    log = LogHook(writers, every=settings.log.every, speed=speed, is_probed=partial(is_probed, run))
    if settings.probe is None:
        return [log, console, RetentionHook(run.folder.checkpoints, settings.checkpoint)]
    probes = ProbeHook(run, report=partial(add_probe, writers), say=console.say, is_stop_requested=is_stop_requested)
    return [log, console, probes, RetentionHook(run.folder.checkpoints, settings.checkpoint, in_use=probes)]


def _peak_flops(settings: CompleteSettings, engine: Engine) -> float | None:
    """FLOPs per second that all devices of the run can do at most; None if unknown."""
    given, ranks = settings.log.peak_tflops, engine.ranks
    each = given * 1e12 if given else known_peak_flops(ranks.device, precision=settings.precision)
    return each * ranks.world_size if each else None


def _writers(run: DeclaredRun, *, resumed_step: int | None) -> list[LineWriter]:
    """Writers of logged steps of a run that goes on from a step; None: a fresh start."""
    log, folder = run.settings.log, run.folder
    writers: list[LineWriter] = [MetricsFile(folder, resumed_step=resumed_step)]
    if log.tensorboard:
        writers.append(TensorBoardWriter(folder.tensorboard, resumed_step=resumed_step))
    if log.wandb:
        project = log.wandb if isinstance(log.wandb, str) else None
        writers.append(WandbWriter(folder, project=project, resumed_step=resumed_step, settings=snapshot(run.settings)))
    return writers


def _manifest(run: ResolvedRun, engine: Engine, origin: dict[str, str]) -> CheckpointManifest:
    """The manifest of the run's checkpoints, but for where the run stands."""
    corpus, parallel = run.data.corpus, run.settings.parallel
    return CheckpointManifest(
        toolkit_version=toolkit.__version__,
        step=0,
        optimizer_step=0,
        tokens=0,
        data_position=0,
        data_digest="",
        settings=snapshot(run.settings),
        corpora=run.data.corpora.hashes(),
        vocabulary=VocabularyEntry.of(corpus.vocabulary, corpus.fingerprint),
        layout=LayoutEntry(
            world_size=engine.ranks.world_size, zero_stage=engine.zero_stage, tp=parallel.tp, pp=parallel.pp
        ),
        kernels=engine.kernels,
        tensors={},
        files={},
        losses={},
        origin=origin,
    )
