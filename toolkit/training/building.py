"""The engine of a rank: its part of the model, with kernels, compiled blocks and activation checkpointing."""

from functools import partial

import torch

from toolkit.engine.ds_config import zero_stage
from toolkit.engine.engine import Engine
from toolkit.engine.ranks import Ranks
from toolkit.model.activation_checkpointing import checkpoint_blocks_
from toolkit.model.compiled_blocks import compile_blocks_, reason_against_compiling
from toolkit.model.encoder import Encoder
from toolkit.model.kernels.choice import Kernels
from toolkit.parallel.shares import allocate_
from toolkit.parallel.stages import Stage
from toolkit.parallel.tensor_parallel import share_weights_
from toolkit.run.declared import DeclaredRun
from toolkit.run.division import Division
from toolkit.training.shared_inputs import agree


def build_engine(run: DeclaredRun, division: Division, *, ranks: Ranks) -> Engine:
    """The engine around this rank's part of the model; other parts are never allocated. Collective.

    What it computes with runs on all ranks, and may be eager though `division` wants compiled blocks: `Engine.kernels`.
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
