"""The run as the loop wants it: batches, evaluation, saving and hooks around an engine."""

from collections.abc import Callable
from functools import partial

import toolkit
from toolkit.checkpoint.manifest import CheckpointManifest, LayoutEntry, VocabularyEntry
from toolkit.engine.engine import Engine
from toolkit.parallel.topology import BatchPlan
from toolkit.run.data import RunData
from toolkit.run.folder import RunFolder
from toolkit.run.identity import snapshot
from toolkit.run.metrics import MetricsFile
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import BatchPlans
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
    data: RunData,
    engine: Engine,
    layout: BatchPlan,
    *,
    state: RunState,
    origin: dict[str, str],
    is_stop_requested: Callable[[], bool],
) -> Run:
    """The run as the loop wants it."""
    settings, ranks = data.settings, engine.ranks
    layouts, parts = BatchPlans(layout, data.plan), list(dict.fromkeys(data.training))
    streams = [part.stream() for part in parts]

    def rows_at(step: int) -> StepRows:
        phase = data.schedule.phase_at(step).index
        number = parts.index(data.training[phase])
        return StepRows(streams[number], parts[number].paths, data.plan.position(step), layouts.at(step))

    batcher = Batcher(
        rows_at,
        data_rank=ranks.data_rank,
        seed=settings.run.seed,
        device=ranks.device,
        targets_multiple=_targets_multiple(settings, engine),
    )
    return Run(
        engine=engine,
        batcher=batcher,
        layouts=layouts,
        plan=data.plan,
        objectives=data.objectives,
        evaluator=_evaluator(data, engine, layout),
        spikes=SpikePolicy(settings.train.on_spike, settings.train.spike_deviations),
        saver=_saver(data, engine, state, origin),
        hooks=_hooks(data, engine, state, is_stop_requested) if ranks.rank == 0 else [],
        is_stop_requested=is_stop_requested,
    )


def finish_probes(settings: RunSettings, *, step: int, is_stop_requested: Callable[[], bool]) -> None:
    """Make the probes that are missing from a run that is finished at `step`; for rank 0.

    Raises:
        UserError: a score cannot be written.
    """
    if not missing_probes(settings, up_to=step):
        return
    writers = _writers(settings, RunFolder(settings.run.dir), resumed_step=step)
    probes = ProbeHook(
        settings,
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


def _hooks(data: RunData, engine: Engine, state: RunState, is_stop_requested: Callable[[], bool]) -> list[Hook]:
    """What watches the run on rank 0."""
    settings, folder = data.settings, RunFolder(data.settings.run.dir)
    speed = Speed(settings.model, peak_flops=_peak_flops(settings, engine))
    resumed_step = None if state.step == data.schedule.first_step else state.step
    writers = _writers(settings, folder, resumed_step=resumed_step)
    console = ConsoleHook(data.plan, data.objectives)
    log = LogHook(writers, every=settings.log.every, speed=speed, is_probed=partial(is_probed, settings))
    if settings.probe is None:
        return [log, console, RetentionHook(folder.checkpoints, settings.checkpoint)]
    probes = ProbeHook(
        settings, report=partial(add_probe, writers), say=console.say, is_stop_requested=is_stop_requested
    )
    return [log, console, probes, RetentionHook(folder.checkpoints, settings.checkpoint, in_use=probes)]


def _targets_multiple(settings: RunSettings, engine: Engine) -> int:
    is_static = settings.train.is_compiled(zero_stage=engine.zero_stage) or engine.ranks.device.type == "cuda"
    return STATIC_TARGETS_MULTIPLE if is_static else 1


def _evaluator(data: RunData, engine: Engine, layout: BatchPlan) -> Evaluator | None:
    if data.validation_rows is None:
        return None
    settings, ranks = data.settings, engine.ranks
    wanted = settings.eval.rows or data.validation_rows.num_rows
    batches = EvaluationBatches(
        data.validation_rows,
        num_rows=min(wanted, data.validation_rows.num_rows),
        micro_batch_rows=layout.micro_batch_rows,
        seed=settings.run.seed,
        data_rank=ranks.data_rank,
        data_parallel_size=ranks.data_parallel_size,
        device=ranks.device,
        targets_multiple=_targets_multiple(settings, engine),
    )
    return Evaluator(engine, batches, data.evaluated, every=settings.eval.every)


def _saver(data: RunData, engine: Engine, state: RunState, origin: dict[str, str]) -> CheckpointSaver:
    folder = RunFolder(data.settings.run.dir)
    return CheckpointSaver(
        engine,
        folder.checkpoints,
        data.settings.checkpoint,
        manifest=_manifest(data, engine, origin),
        tokenizer_folder=folder.tokenizer,
        first_step=state.step,
        plan=data.plan,
    )


def _writers(settings: RunSettings, folder: RunFolder, *, resumed_step: int | None) -> list[LineWriter]:
    """Where logged steps go; None: at a fresh start."""
    writers: list[LineWriter] = [MetricsFile(folder, resumed_step=resumed_step)]
    if settings.log.tensorboard:
        writers.append(TensorBoardWriter(folder.tensorboard, resumed_step=resumed_step))
    if settings.log.wandb:
        project = settings.log.wandb if isinstance(settings.log.wandb, str) else None
        writers.append(WandbWriter(folder, project=project, resumed_step=resumed_step, settings=snapshot(settings)))
    return writers


def _peak_flops(settings: RunSettings, engine: Engine) -> float | None:
    """What all devices of the run can do at most; None if unknown."""
    given = settings.log.peak_tflops
    ranks = engine.ranks
    assert settings.precision is not None
    each = given * 1e12 if given else known_peak_flops(ranks.device, precision=settings.precision)
    return each * ranks.world_size if each else None


def _manifest(data: RunData, engine: Engine, origin: dict[str, str]) -> CheckpointManifest:
    """The manifest of the run's checkpoints, but for where the run stands."""
    return CheckpointManifest(
        toolkit_version=toolkit.__version__,
        step=0,
        optimizer_step=0,
        tokens=0,
        data_position=0,
        data_digest="",
        settings=snapshot(data.settings),
        corpora=data.hashes(),
        vocabulary=VocabularyEntry.of(data.corpus.vocabulary, data.corpus.fingerprint),
        layout=LayoutEntry(
            world_size=engine.ranks.world_size,
            zero_stage=engine.zero_stage,
            tp=data.settings.parallel.tp,
            pp=data.settings.parallel.pp,
        ),
        kernels=engine.kernels,
        tensors={},
        files={},
        losses={},
        origin=origin,
    )
