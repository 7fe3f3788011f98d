"""Setup of a rank: its engine, the weights and the state that the run continues from, and the parts of the loop.

The engine wraps the rank's part of the model, with kernels, compiled blocks and activation checkpointing.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from toolkit.checkpoint.read import Checkpoint, ParameterState
from toolkit.engine.ds_config import zero_stage
from toolkit.engine.engine import Engine
from toolkit.engine.ranks import Ranks
from toolkit.engine.saving import load_checkpoint
from toolkit.model.activation_checkpointing import checkpoint_blocks_
from toolkit.model.compiled_blocks import compile_blocks_, reason_against_compiling
from toolkit.model.encoder import Encoder
from toolkit.model.growth import Growth
from toolkit.model.kernels.choice import Kernels
from toolkit.parallel.shares import allocate_
from toolkit.parallel.stages import Stage
from toolkit.parallel.tensor_parallel import share_weights_
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.division import Division
from toolkit.run.metrics import best_step
from toolkit.run.resolve import ResolvedRun
from toolkit.training.agreement import agree
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


def build_engine(run: DeclaredRun, division: Division, *, ranks: Ranks) -> Engine:
    """The engine around this rank's part of the model; other parts are never allocated. Collective.

    Its kernels run on all ranks; blocks may be eager even if `division` wants them compiled (see `Engine.kernels`).
    """
    settings = run.settings
    with torch.device("meta"):
        encoder = Encoder(settings.model)
    encoder.lm_head.z_loss = settings.train.z_loss
    names = [name for name, _ in encoder.named_parameters()]
    topology = ranks.topology
    if topology.tp > 1:
        share_weights_(encoder, ranks.groups.tensor)
    config = dict(division.ds_config)
    dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    with ranks.together():
        kernels = Kernels.choose(
            ranks.device,
            dtype,
            blocks="compiled" if division.is_compiled else "eager",
            weights="partitioned" if zero_stage(config) == 3 else "whole",
            head_size=settings.model.head_size,
            window=settings.model.narrowest_window,
            attention=settings.train.attention_kernel,
            agree=partial(agree, ranks),
        )
    if division.is_compiled:
        with ranks.together():
            found = reason_against_compiling(settings.model, kernels, device=ranks.device, dtype=dtype)
        if (reason := agree(ranks, found)) is not None:
            kernels = kernels.uncompiled(reason)
    kernels.apply_(encoder)
    if ranks.rank == 0:
        print("".join(f"{choice}\n" for choice in kernels.choices), end="", flush=True)
    if kernels.names["blocks"] == "compiled":
        compile_blocks_(encoder)
    checkpoint_blocks_(encoder.model.layers, settings.train.activation_checkpointing)
    module = encoder if topology.pp == 1 else Stage(encoder, run.stages[topology.stage])
    allocate_(module, settings.run.seed, settings=settings.model)
    if isinstance(module, Stage):
        from toolkit.engine.pipeline import PipelinedEngine

        return PipelinedEngine(
            module, names=names, config=config, optimizer=settings.train, ranks=ranks, kernels=kernels.names
        )
    return Engine(module, config=config, optimizer=settings.train, ranks=ranks, kernels=kernels.names)


class GrownCheckpoint(Checkpoint):
    """The weights of a smaller model, tiled (`init.grow`); each parameter is made when it is read, without moments.

    `names` are those of the larger model's parameters.
    """

    def __init__(self, small: Checkpoint, growth: Growth, *, names: Iterable[str]) -> None:
        tensors = {name: small.manifest.tensors[growth.source(name)] for name in names}
        super().__init__(small.path, small.manifest.model_copy(update={"tensors": tensors}))
        self._small, self._growth = small, growth

    def fresh_parameter(self, name: str) -> ParameterState:
        """One parameter of the larger model, as for a new optimizer."""
        weight = self._growth.tile(name, self._small.weight(self._growth.source(name)))
        return ParameterState(name, weight, torch.zeros_like(weight), torch.zeros_like(weight))


def load_weights(engine: Engine, run: ResolvedRun, checkpoint: Checkpoint | None) -> RunState:
    """Load the weights, and moments if kept, of the checkpoint that the run continues from. Collective."""
    if checkpoint is None:
        return RunState()
    going_on, manifest, growth = run.continuation, checkpoint.manifest, run.continuation.growth(run.settings)
    source = checkpoint if growth is None else GrownCheckpoint(checkpoint, growth, names=engine.parameter_names)
    load_checkpoint(engine, source, moments="reset" if going_on.takes == "weights" else "keep")
    if engine.ranks.rank == 0:
        print(going_on.describe(run.settings), flush=True)
    if going_on.before is None:
        return RunState()
    digest = bytes.fromhex(manifest.data_digest)
    return RunState(manifest.step, manifest.tokens, digest, manifest.losses, manifest.recent_losses)


def assemble(
    run: ResolvedRun,
    engine: Engine,
    *,
    state: RunState,
    stop: int,
    hosts: Sequence[str],
    is_stop_requested: Callable[[], bool],
) -> Run:
    """The run as the loop needs it, from a state on; `hosts` are by rank, and only rank 0 needs them."""
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
        saver=CheckpointSaver(run, engine, first_step=state.step),
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
    retention = RetentionHook(
        run.folder.checkpoints,
        settings.checkpoint,
        say=console.say,
        in_use=copies or (),
        best=lambda: best_step(run.folder, settings, run.data.corpora.hashes()),
    )
    return [log, console, slow, *([] if copies is None else [copies]), retention]
