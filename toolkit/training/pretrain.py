"""The pretraining program: what one rank of a run does, up to the last checkpoint.

1. Join the other ranks. Where nobody has resolved the run yet (`toolkit train` has), rank 0 does, and writes run.toml
   and deepspeed.json; the others wait, for as long as it takes.
2. Read those two and open the data, which has to be the same for all ranks. Build the encoder and its engine, and
   restore the newest intact checkpoint.
3. Loop. Leave together, with the same exit code on every rank.
"""

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.checkpoint.read import Checkpoint, open_checkpoint, open_unverified
from toolkit.core.allocator import keep_freed_memory
from toolkit.data import DIGEST_START
from toolkit.engine.ds_config import zero_stage
from toolkit.engine.engine import Engine
from toolkit.engine.gpus import has_gpu
from toolkit.engine.peers import peers_watched
from toolkit.engine.ranks import Ranks, join_ranks
from toolkit.engine.saving import load_checkpoint
from toolkit.model.activation_checkpointing import checkpoint_blocks_
from toolkit.model.compiled_blocks import compile_blocks_
from toolkit.model.encoder import Encoder
from toolkit.model.kernels.choice import Kernels
from toolkit.parallel.launcher import read_launcher
from toolkit.parallel.shares import allocate_
from toolkit.parallel.stages import Stage
from toolkit.parallel.tensor_parallel import share_weights_
from toolkit.run.folder import RunFolder
from toolkit.run.identity import check_same_model, growth_of, rope_differences
from toolkit.run.load import read_resolved
from toolkit.run.resolve import Outcome, read_run, resolve_run
from toolkit.run.settings import RunSettings
from toolkit.run.stages import blocks_of_stages
from toolkit.run.start import no_intact_checkpoint
from toolkit.run.step_plan import schedule_of
from toolkit.training.assembly import assemble, finish_probes
from toolkit.training.grown_checkpoint import GrownCheckpoint
from toolkit.training.loop import train
from toolkit.training.run_state import RunState
from toolkit.training.shared_inputs import check_same_inputs, check_same_kernels, check_shared_folder
from toolkit.training.stopping import StopRequest

_GPU_SWITCH_SECONDS = 5e-4
"""Python's own 5 ms are many kernels' time."""


def pretrain(settings: RunSettings, *, ds_config: str | None = None) -> Outcome:
    """Run, or resume, a pretraining run as one of its ranks; alone where no launcher set RANK in the environment.

    Args:
        settings: as `load_run` gives them.
        ds_config: path of a DeepSpeed JSON, or the name of a shipped one; None: chosen.

    Raises:
        UserError: settings, corpus or checkpoint do not fit; on every rank.
        NonFiniteError: the loss or a gradient is not finite; on every rank.
    """
    with StopRequest() as is_stop_requested, ExitStack() as stack:
        ranks = _join()
        stack.enter_context(peers_watched(ranks))

        def resolve() -> None:
            run = resolve_run(settings, ds_config=ds_config, num_ranks=ranks.world_size)
            print("".join(f"{choice}\n" for choice in run.choices), end="", flush=True)
            stack.enter_context(run.folder.reserved())
            stack.enter_context(run.folder.locked())
            run.write()

        with ranks.together():
            if ranks.rank == 0:
                resolve()
        return _pretrain(RunFolder(settings.run.dir), ranks, is_stop_requested)


def pretrain_resolved(folder: RunFolder) -> Outcome:
    """Run, or resume, as one of its ranks a run that `ResolvedRun.write` left in its folder.

    Raises:
        UserError: corpus or checkpoint do not fit; on every rank.
        NonFiniteError: the loss or a gradient is not finite; on every rank.
    """
    with StopRequest() as is_stop_requested, ExitStack() as stack:
        ranks = _join()
        stack.enter_context(peers_watched(ranks))
        with ranks.together():
            if ranks.rank == 0:
                stack.enter_context(folder.locked())
        return _pretrain(folder, ranks, is_stop_requested)


def _pretrain(folder: RunFolder, ranks: Ranks, is_stop_requested: StopRequest) -> Outcome:
    check_shared_folder(folder.path, ranks)
    with ranks.together():
        settings = read_resolved(folder.settings_file)
    ranks = join_ranks(settings.parallel)
    total_steps = schedule_of(settings).total_steps
    resumed = _own_checkpoint(folder, ranks)
    if resumed is not None and resumed.manifest.step == total_steps:
        with ranks.together():
            if ranks.rank == 0:
                finish_probes(settings, step=total_steps, is_stop_requested=is_stop_requested)
        return Outcome(total_steps, total_steps, was_finished=True)
    with ranks.together():
        run = read_run(folder, settings, num_ranks=ranks.world_size)
    initial = _initial_checkpoint(run.settings, ranks) if resumed is None else None
    first = run.settings.first_weights if resumed is None else None
    key = "the newest checkpoint" if first is None else first.key
    check_same_inputs(ranks, run.data, resumed or initial, key=key)
    engine = _build_engine(run.settings, run.ds_config, ranks)
    try:
        state = _restore(engine, resumed) if initial is None else _start_from(engine, initial, run.settings)
        with ranks.together():
            if ranks.rank == 0:
                print(run.data.describe(), flush=True)
            assembled = assemble(
                run.data,
                engine,
                run.plan,
                state=state,
                origin=_origin(resumed, initial, run.settings),
                is_stop_requested=is_stop_requested,
            )
        state = train(assembled, state)
    finally:
        engine.close()
    return Outcome(state.step, total_steps, was_finished=False)


def _join() -> Ranks:
    _use_cores()
    return join_ranks()


def _use_cores() -> None:
    """On a CPU run: share the cores among the ranks of this machine, and keep freed memory.

    On a GPU run: the thread that launches kernels gets the interpreter back soon from the one that builds batches, and
    products in bf16 are added up in fp32 throughout.
    """
    if has_gpu():
        sys.setswitchinterval(_GPU_SWITCH_SECONDS)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        return
    keep_freed_memory()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // read_launcher().local_world_size))


def _own_checkpoint(folder: RunFolder, ranks: Ranks) -> Checkpoint | None:
    """The checkpoint to resume from, hashed by rank 0; `resolve_run` has seen that it is of this run."""
    path: Path | None = None
    with ranks.together():
        if ranks.rank == 0:
            newest, damage = folder.newest_checkpoint()
            if newest is None and damage:
                raise no_intact_checkpoint(folder, damage)
            print("".join(f"{message}\n" for message in damage), end="", flush=True)
            path = None if newest is None else newest.path
    path = ranks.broadcast(path)
    with ranks.together():
        return None if path is None else open_unverified(path)


def _initial_checkpoint(settings: RunSettings, ranks: Ranks) -> Checkpoint | None:
    """The checkpoint whose weights a new run starts with, hashed by rank 0; None where they are random."""
    first = settings.first_weights
    if first is None:
        return None
    path: Path | None = None
    with ranks.together():
        if ranks.rank == 0:
            found = open_checkpoint(first.source)
            check_same_model(settings, found.manifest)
            path = found.path
    path = ranks.broadcast(path)
    assert path is not None
    with ranks.together():
        return open_unverified(path)


def _start_from(engine: Engine, initial: Checkpoint, settings: RunSettings) -> RunState:
    """Weights, and moments if they are kept, of another run or an imported model; only a branch goes on from there."""
    first, manifest = settings.first_weights, initial.manifest
    assert first is not None
    source, grown = initial, ""
    if first.grow is not None:
        growth = growth_of(settings, manifest)
        source, grown = GrownCheckpoint(initial, growth, names=engine.parameter_names), f", {growth.describe()}"
    load_checkpoint(engine, source, moments=first.optimizer)
    if engine.ranks.rank == 0:
        kept = "with its optimizer" if first.optimizer == "keep" else "with a new optimizer"
        print(f"starting from {initial.path} (step {manifest.step}){grown}, {kept}", flush=True)
        for line in rope_differences(settings, manifest):
            print(f"these weights were trained with other rotary embeddings: {line}", flush=True)
    if settings.branch is None:
        return RunState()
    state = _state_of(manifest)
    return state if settings.branch.data == "keep" else replace(state, digest=DIGEST_START)


def _origin(checkpoint: Checkpoint | None, initial: Checkpoint | None, settings: RunSettings) -> dict[str, str]:
    """Where the weights came from before the run's first step, for its manifests; empty for those that were drawn.

    An imported model is named as its import named it; a run by its own name, wherever its checkpoint lies now.
    """
    if checkpoint is not None:
        return checkpoint.manifest.origin
    if initial is None:
        return {}
    manifest, first = initial.manifest, settings.first_weights
    # A branch has its parent's, since the two are one run up to there.
    if settings.branch is not None:
        return manifest.origin
    is_grown = first is not None and first.grow is not None
    grown = {"grown": growth_of(settings, manifest).describe()} if is_grown else {}
    run = manifest.settings.get("run")
    if run is None and manifest.origin:
        return manifest.origin | grown
    folder = Path(run["dir"]).name if isinstance(run, dict) else ""
    return manifest.origin | {"run": folder or initial.path.absolute().name, "step": str(manifest.step)} | grown


def _build_engine(settings: RunSettings, config: dict[str, Any], ranks: Ranks) -> Engine:
    """The engine around this rank's part of the model; other parts are never allocated."""
    with torch.device("meta"):
        encoder = Encoder(settings.model)
    encoder.lm_head.z_loss = settings.train.z_loss
    names = [name for name, _ in encoder.named_parameters()]
    topology = ranks.topology
    if topology.tp > 1:
        share_weights_(encoder, ranks.groups.tensor)
    stage = zero_stage(config)
    is_compiled = settings.train.is_compiled(zero_stage=stage)
    with ranks.together():
        kernels = Kernels.choose(
            ranks.device,
            torch.bfloat16 if settings.precision == "bf16" else torch.float32,
            blocks="compiled" if is_compiled else "eager",
            weights="partitioned" if stage == 3 else "whole",
            head_size=settings.model.head_size,
            attention=settings.train.attention_kernel,
        )
    check_same_kernels(ranks, kernels.choices)
    kernels.apply_(encoder)
    if ranks.rank == 0:
        print("".join(f"{choice}\n" for choice in kernels.choices), end="", flush=True)
    if is_compiled:
        compile_blocks_(encoder)
    checkpoint_blocks_(encoder.model.layers, settings.train.activation_checkpointing)
    module = encoder if topology.pp == 1 else Stage(encoder, blocks_of_stages(settings)[topology.stage])
    allocate_(module, settings.run.seed, standard_deviation=settings.model.initializer_range)
    if isinstance(module, Stage):
        from toolkit.engine.pipeline import PipelinedEngine

        return PipelinedEngine(
            module, names=names, config=config, optimizer=settings.train, ranks=ranks, kernels=kernels.names
        )
    return Engine(module, config=config, optimizer=settings.train, ranks=ranks, kernels=kernels.names)


def _restore(engine: Engine, checkpoint: Checkpoint | None) -> RunState:
    if checkpoint is None:
        return RunState()
    load_checkpoint(engine, checkpoint)
    manifest = checkpoint.manifest
    if engine.ranks.rank == 0:
        print(f"resuming from step {manifest.step}", flush=True)
    return _state_of(manifest)


def _state_of(manifest: CheckpointManifest) -> RunState:
    return RunState(
        manifest.step, manifest.tokens, bytes.fromhex(manifest.data_digest), manifest.losses, manifest.recent_losses
    )
