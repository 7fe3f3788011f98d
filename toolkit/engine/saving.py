"""Canonical checkpoints of an engine: written by all ranks at once, each its share of the parameters by name."""

from pathlib import Path
from typing import Literal

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.checkpoint.read import Checkpoint, ParameterState
from toolkit.checkpoint.write import abandon, begin, finish, merge_parts, write_part
from toolkit.core.errors import CheckpointError
from toolkit.engine.engine import Engine
from toolkit.engine.optimizer_state import collect, restore, stage_sizes


def save_checkpoint(engine: Engine, root: Path, *, manifest: CheckpointManifest, tokenizer_folder: Path) -> Path:
    """Write the state of the engine below `root`; collective. The checkpoint appears whole or not at all.

    Args:
        engine: all ranks', between two steps and after at least one.
        root: the run's checkpoints folder, seen by all ranks.
        manifest: where the run stands; its `tensors` and `files` are filled in here.
        tokenizer_folder: copied into the checkpoint.

    Raises:
        CheckpointError: on every rank, if any could not write; earlier checkpoints are untouched.
    """
    ranks = engine.ranks
    world = ranks.world_size
    with ranks.together():
        mine = begin(root, manifest.step) if ranks.rank == 0 else None
    folder = ranks.broadcast(mine)
    assert folder is not None
    states = list(collect(engine, is_mine=_own_part(engine).__contains__))
    try:
        with ranks.together():
            part = write_part(folder, part=ranks.rank, num_parts=world, parameters=states)
        del states
        merged = merge_parts(ranks.gather(part))
        with ranks.together():
            if ranks.rank == 0:
                whole = manifest.model_copy(update={"tensors": merged.tensors, "files": merged.files})
                finish(folder, whole, tokenizer_folder=tokenizer_folder)
    except BaseException:
        if ranks.rank == 0:
            abandon(folder)
        raise
    return root / f"step-{manifest.step:08d}"


def _own_part(engine: Engine) -> set[str]:
    """Names of the parameters that this rank writes: of its stage's, the largest first, each to who has least so far.

    By number, one rank could get both the embedding and the head, which are most of a small model.
    """
    topology = engine.ranks.topology
    loads, own = [0] * topology.ranks_per_stage, set()
    for name, size in sorted(stage_sizes(engine).items(), key=lambda item: -item[1]):
        writer = loads.index(min(loads))
        loads[writer] += size
        if writer == topology.rank % topology.ranks_per_stage:
            own.add(name)
    return own


def load_checkpoint(engine: Engine, checkpoint: Checkpoint, *, moments: Literal["keep", "reset"] = "keep") -> None:
    """Restore weights and optimizer into a fresh engine of any layout; collective, every rank reads.

    Args:
        engine: all ranks'.
        checkpoint: of the same parameters.
        moments: whether the optimizer's are restored too, or start at zero.

    Raises:
        CheckpointError: the parameters are not the engine's, or any rank could not read one; on every rank.
    """
    own, expected = engine.named_parameters(), set(engine.parameter_names)
    found = checkpoint.manifest.tensors.keys()
    if expected != found:
        differing = ", ".join(sorted(expected ^ found)[:5])
        raise CheckpointError(
            f"{checkpoint.path} does not have the parameters of the model; they differ in {differing}. "
            "Use a checkpoint of a model of this shape."
        )

    def read(name: str) -> ParameterState | None:
        # Agreed for each, since a rank that failed alone would leave the others in what `restore` exchanges.
        with engine.ranks.together():
            if name not in own:
                return None
            return checkpoint.fresh_parameter(name) if moments == "reset" else checkpoint.parameter(name)

    restore(engine, read, optimizer_step=0 if moments == "reset" else checkpoint.manifest.optimizer_step)
