"""Start of a run on a rank: at its own newest checkpoint, with the weights of another run or model, or at random.

Each rank opens the checkpoint by itself; rank 0 alone has hashed its files.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from toolkit.checkpoint.manifest import CheckpointManifest
from toolkit.checkpoint.read import Checkpoint, ParameterState, open_checkpoint, open_unverified
from toolkit.engine.engine import Engine
from toolkit.engine.ranks import Ranks
from toolkit.engine.saving import load_checkpoint
from toolkit.model.growth import Growth
from toolkit.remote import is_url
from toolkit.run.declared import DeclaredRun
from toolkit.run.identity import check_resumable, growth_of, rope_differences
from toolkit.run.remote_checkpoints import RemoteCheckpoint
from toolkit.run.resolve import ResolvedRun
from toolkit.run.settings import FirstWeights, RunSettings
from toolkit.run.start import Start
from toolkit.training.run_state import RunState


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


def own_checkpoint(run: DeclaredRun, ranks: Ranks) -> Checkpoint | None:
    """The checkpoint to resume from; `resolve_run` has seen that it is of this run. Collective."""

    def newest() -> Path | None:
        found, damage = run.folder.newest_checkpoint()
        if found is None and damage:
            raise run.folder.no_intact_checkpoint(damage)
        print("".join(f"{message}\n" for message in damage), end="", flush=True)
        if found is None:
            return None
        check_resumable(found.manifest, run.settings)
        return found.path

    return _opened(newest, ranks)


def _opened(find: Callable[[], Path | None], ranks: Ranks, *, here: Path | None = None) -> Checkpoint | None:
    """The checkpoint that rank 0 finds, whose files it has hashed, opened on each rank, `here` if so. Collective."""
    with ranks.together():
        path = find() if ranks.rank == 0 else None
    path = ranks.broadcast(path)
    with ranks.together():
        return None if path is None else open_unverified(here or path)


@dataclass(frozen=True)
class Beginning:
    """Source of the weights of a run on this rank."""

    settings: RunSettings
    checkpoint: Checkpoint | None
    """The one to resume from, or to start with; None: weights are drawn."""
    first: FirstWeights | None
    """What names the one to start with."""
    growth: Growth | None = None
    """From the model of that one to the run's, if it is smaller."""

    @property
    def key(self) -> str:
        """Name of the checkpoint in messages."""
        return "the newest checkpoint" if self.first is None else self.first.key

    def load(self, engine: Engine) -> RunState:
        """Load the weights, and moments that are kept; only a resumed run and a fork go on from there. Collective."""
        checkpoint, settings, first = self.checkpoint, self.settings, self.first
        if checkpoint is None:
            return RunState()
        manifest, growth, digest = checkpoint.manifest, self.growth, bytes.fromhex(checkpoint.manifest.data_digest)
        state = RunState(manifest.step, manifest.tokens, digest, manifest.losses, manifest.recent_losses)
        source = checkpoint if growth is None else GrownCheckpoint(checkpoint, growth, names=engine.parameter_names)
        load_checkpoint(engine, source, moments="keep" if first is None else first.optimizer)
        told = [f"resuming from step {manifest.step}"]
        if first is not None:
            kept = "with its optimizer" if first.optimizer == "keep" else "with a new optimizer"
            grown = "" if growth is None else f", {growth.describe()}"
            told = [f"starting from {first.source} (step {manifest.step}){grown}, {kept}"]
            others = [] if settings.fork is not None else rope_differences(settings, manifest)
            told += [f"these weights were trained with other rotary embeddings: {line}" for line in others]
        if engine.ranks.rank == 0:
            print(*told, sep="\n", flush=True)
        if first is None:
            return state
        return RunState() if settings.fork is None else state

    @property
    def gone_on_from(self) -> CheckpointManifest | None:
        """Of the checkpoint that the run's steps so far have led to, its own or those before a fork."""
        is_new = self.checkpoint is None or (self.first is not None and self.settings.fork is None)
        return None if is_new or self.checkpoint is None else self.checkpoint.manifest

    def origin(self) -> dict[str, str]:
        """Source of the weights before the run's first step, for its manifests; empty for those that were drawn.

        An imported model is named as its import named it; a run by its own name, wherever its checkpoint lies now.
        """
        if self.checkpoint is None:
            return {}
        manifest = self.checkpoint.manifest
        # A fork has that of the run before, since the two are one up to there.
        if self.first is None or self.settings.fork is not None:
            return manifest.origin
        grown = {} if self.growth is None else {"grown": self.growth.describe()}
        run = manifest.settings.get("run")
        if run is None and manifest.origin:
            return manifest.origin | grown
        folder = Path(run["dir"]).name if isinstance(run, dict) else ""
        name = folder or self.checkpoint.path.absolute().name
        merged = {"merged": str(len(manifest.merged))} if manifest.merged else {}
        before = {key: value for key, value in manifest.origin.items() if key != "merged"}
        return before | {"run": name, "step": str(manifest.step)} | merged | grown


def find_beginning(run: ResolvedRun, own: Checkpoint | None, ranks: Ranks) -> Beginning:
    """Beginning of a run that has a checkpoint of its own, or none; collective."""
    first = run.settings.first_weights
    if own is not None or first is None:
        return Beginning(run.settings, own, None)

    source = first.source
    here: Path | None = None
    if is_url(source):
        # On each machine, by the first of its ranks.
        with ranks.together():
            remote = RemoteCheckpoint.newest(source)
            assert remote is not None, "found when the run was resolved"
            # The caches of two machines need not have one path.
            here = remote.cached()
            source = str(here)

    def fitting() -> Path:
        found = open_checkpoint(source)
        Start(initial=found.manifest).check(run, run.data.corpora)
        return found.path

    found = _opened(fitting, ranks, here=here)
    growth = None if found is None or first.grow is None else growth_of(run.settings, found.manifest)
    return Beginning(run.settings, found, first, growth)
