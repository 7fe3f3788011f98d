"""The pretraining program: what one rank of a run does, from settings to the last checkpoint.

1. Before any process group exists: open the corpora, make the packing plans, fill in the DeepSpeed file. All of it can
   fail with a message, and some of it takes longer than a process group waits.
2. Join the other ranks, build the encoder and its engine, and restore the newest intact checkpoint, if there is one.
3. Loop. Leave together, with the same exit code on every rank.
"""

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.checkpoint.folders import CHECKPOINTS_FOLDER
from toolkit.checkpoint.read import Checkpoint, newest_intact, open_checkpoint, open_unverified
from toolkit.core.allocator import keep_freed_memory
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.engine.ds_config import DEFAULT_DS_CONFIG
from toolkit.engine.engine import Engine
from toolkit.engine.ranks import Ranks, has_gpu, join_ranks
from toolkit.engine.saving import load_checkpoint
from toolkit.model.encoder import Encoder, compile_blocks_
from toolkit.model.initialize import initialize_
from toolkit.run.resume import check_corpora, check_resume, check_weights, other_positions
from toolkit.run.settings import RunSettings
from toolkit.training.assembly import RunData, assemble, open_run_data, resolve_engine
from toolkit.training.loop import train
from toolkit.training.run_state import Ancestry, RunState
from toolkit.training.stopping import StopRequest

_SECONDS_FOR_A_DYING_RUN = 15.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the step it stands at, of how many, and whether it had to do anything."""

    step: int
    total_steps: int
    was_finished: bool

    def __str__(self) -> str:
        if self.was_finished:
            return f"already finished at step {self.step}"
        return f"finished at step {self.step}" if self.step == self.total_steps else f"stopped at step {self.step}"


def pretrain(settings: RunSettings, *, ds_config: str = DEFAULT_DS_CONFIG) -> Outcome:
    """Run, or resume, a pretraining run as one of its ranks; alone where no launcher set RANK in the environment.

    Args:
        settings: as `load_run` gives them.
        ds_config: path of a DeepSpeed JSON, or the name of a shipped one.

    Raises:
        UserError: settings, corpus or checkpoint do not fit; on every rank.
        NonFiniteError: the loss or a gradient is not finite; on every rank.
    """
    with StopRequest() as is_stop_requested:
        return _pretrain(settings, ds_config, is_stop_requested)


def _pretrain(settings: RunSettings, ds_config: str, is_stop_requested: StopRequest) -> Outcome:
    data = open_run_data(settings)
    config, layout = resolve_engine(data.settings, ds_config, num_ranks=int(os.environ.get("WORLD_SIZE", "1")))
    _use_cores()
    ranks = join_ranks()
    with _run_folder(Path(settings.run.dir), ranks):
        checkpoint = _newest_checkpoint(data, ranks)
        total_steps = data.schedule.total_steps
        if checkpoint is not None and checkpoint.manifest.step == total_steps:
            return Outcome(total_steps, total_steps, was_finished=True)
        initial = _initial_checkpoint(data, ranks) if checkpoint is None else None
        engine = _build_engine(data.settings, config, ranks)
        try:
            state = _restore(engine, checkpoint) if initial is None else _start_from(engine, initial, data.settings)
            with ranks.together():
                run = assemble(
                    data,
                    engine,
                    layout,
                    state=state,
                    ancestry=_ancestry(checkpoint, initial, data.settings),
                    is_stop_requested=is_stop_requested,
                )
            state = train(run, state)
        finally:
            engine.close()
        return Outcome(state.step, total_steps, was_finished=False)


def _use_cores() -> None:
    """On a CPU run: share the cores among the ranks of this machine, and keep freed memory."""
    import torch

    if has_gpu():
        return
    keep_freed_memory()
    if "OMP_NUM_THREADS" not in os.environ:
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", "0")) or 0)
        local_ranks = local_ranks or int(os.environ.get("WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_ranks))


@contextmanager
def _run_folder(folder: Path, ranks: Ranks) -> Iterator[None]:
    """The run folder, made, and held against a second run in it."""
    from filelock import FileLock, Timeout

    lock = nullcontext() if ranks.rank else FileLock(folder / ".lock", timeout=_SECONDS_FOR_A_DYING_RUN)
    with ranks.together():
        if isinstance(lock, FileLock):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock.acquire()
            except Timeout:
                raise SettingsError(
                    f"another run is training in {folder}.\nWait for it, stop it, or set run.dir to another folder."
                ) from None
            except OSError as error:
                raise SettingsError(
                    f"the run folder {folder} cannot be written: {error.strerror}.\nSet run.dir to one that can."
                ) from None
    try:
        _check_shared(folder, ranks)
        yield
    finally:
        if isinstance(lock, FileLock):
            lock.release()


def _check_shared(folder: Path, ranks: Ranks) -> None:
    """Every rank looks for a file that rank 0 just made: else the first checkpoint would find out.

    Raises:
        SettingsError: a rank does not see it; on every rank.
    """
    probe = folder / ranks.broadcast(f".look-{uuid.uuid4().hex[:12]}")
    try:
        with ranks.together():
            if ranks.rank == 0:
                probe.touch()
        with ranks.together():
            if not probe.exists():
                raise SettingsError(
                    f"rank {ranks.rank} on {socket.gethostname()} does not see what rank 0 writes to the run folder "
                    f"{folder}.\nSet run.dir to an absolute path on a file system that all machines of the run share."
                )
    finally:
        if ranks.rank == 0:
            probe.unlink(missing_ok=True)


def _newest_checkpoint(data: RunData, ranks: Ranks) -> Checkpoint | None:
    """The checkpoint to go on from, hashed by rank 0, after checking that it is of this run."""
    path: Path | None = None
    with ranks.together():
        if ranks.rank == 0:
            root = Path(data.settings.run.dir) / CHECKPOINTS_FOLDER
            newest, skipped = newest_intact(root)
            if newest is not None:
                print("".join(f"{message}\n" for message in skipped), end="", flush=True)
                check_resume(newest.manifest.settings, data.settings)
                check_corpora(newest.manifest.corpora, data.corpora())
                path = newest.path
            elif skipped:
                raise CheckpointError(
                    "\n  ".join([f"no checkpoint in {root} is intact:", *skipped])
                    + "\nCopy one there again, or start again in another run.dir."
                )
    path = ranks.broadcast(path)
    with ranks.together():
        return None if path is None else open_unverified(path)


def _initial_checkpoint(data: RunData, ranks: Ranks) -> Checkpoint | None:
    """The checkpoint whose weights a new run starts with, hashed by rank 0; None where they are drawn."""
    init = data.settings.init
    if init is None:
        return None
    path: Path | None = None
    with ranks.together():
        if ranks.rank == 0:
            found = open_checkpoint(init.source)
            check_weights(data.settings, found.manifest, found.path)
            path = found.path
    path = ranks.broadcast(path)
    assert path is not None
    with ranks.together():
        return open_unverified(path)


def _start_from(engine: Engine, initial: Checkpoint, settings: RunSettings) -> RunState:
    """Weights, and moments if they are kept, of another run or an imported model; the run itself starts at 0."""
    assert settings.init is not None
    load_checkpoint(engine, initial, moments=settings.init.optimizer)
    if engine.ranks.rank == 0:
        kept = "with its optimizer" if settings.init.optimizer == "keep" else "with a new optimizer"
        print(f"starting from {initial.path} (step {initial.manifest.step}), {kept}", flush=True)
        for line in other_positions(settings, initial.manifest):
            print(f"positions are read in another way than these weights were trained with: {line}", flush=True)
    return RunState()


def _ancestry(checkpoint: Checkpoint | None, initial: Checkpoint | None, settings: RunSettings) -> Ancestry:
    """What was behind the weights before the run's own first step; nothing for those that were drawn."""
    if checkpoint is not None:
        manifest = checkpoint.manifest
        return Ancestry(manifest.origin, manifest.optimizer_step - manifest.step)
    if initial is None or settings.init is None:
        return Ancestry()
    manifest = initial.manifest
    return Ancestry(_origin(initial), manifest.optimizer_step if settings.init.optimizer == "keep" else 0)


def _origin(initial: Checkpoint) -> dict[str, str]:
    """An imported model is named as its import named it; a run by its own name, wherever its checkpoint lies now."""
    manifest = initial.manifest
    run = manifest.settings.get("run")
    if run is None and manifest.origin:
        return manifest.origin
    folder = Path(run["dir"]).name if isinstance(run, dict) else ""
    return manifest.origin | {"run": folder or initial.path.absolute().name, "step": str(manifest.step)}


def _build_engine(settings: RunSettings, config: dict[str, Any], ranks: Ranks) -> Engine:
    encoder = Encoder(settings.model)
    initialize_(encoder, settings.run.seed)
    if settings.train.compile:
        compile_blocks_(encoder)
    return Engine(encoder, config=config, optimizer=settings.train, ranks=ranks)


def _restore(engine: Engine, checkpoint: Checkpoint | None) -> RunState:
    if checkpoint is None:
        return RunState()
    load_checkpoint(engine, checkpoint)
    manifest = checkpoint.manifest
    if engine.ranks.rank == 0:
        print(f"resuming from step {manifest.step}", flush=True)
    return RunState(manifest.step, manifest.tokens, bytes.fromhex(manifest.data_digest), manifest.losses)
