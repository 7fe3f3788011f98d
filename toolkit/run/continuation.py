"""Continuation of a run: from random weights, from the weights of `[init]`, from another run's checkpoint (`[fork]`),
or from its own newest checkpoint.

It is found once, by the process that starts the run, and written to the run folder, where each rank reads it. If
init.from has more than one checkpoint, the newest at the start is taken, and RUN_DIR/run.toml names it. Once the run
has a checkpoint of its own, init.from and fork.from are not read again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from toolkit.checkpoint.folders import CHECKPOINTS_FOLDER
from toolkit.checkpoint.manifest import FIRST_WEIGHTS, MANIFEST_NAME, CheckpointManifest, read_manifest
from toolkit.checkpoint.read import Checkpoint, import_hint, newest_intact
from toolkit.core.errors import CheckpointError, SettingsError, UserError
from toolkit.core.text import home_hint, quoted
from toolkit.model.growth import Growth
from toolkit.run.comparison import Course, check_same_corpora, check_same_run, parting
from toolkit.run.corpora import RunCorpora
from toolkit.run.declared_run import DeclaredRun
from toolkit.run.folder import RunFolder, newest_whole
from toolkit.run.identity import check_resumable, check_same_model, growth_of, rope_differences, saved_settings
from toolkit.run.remote_checkpoints import RemoteCheckpoint
from toolkit.run.settings import RunSettings
from toolkit.storage import is_url

WHAT_TO_GIVE = (
    "Give a folder that `toolkit convert --from-hf` wrote, a checkpoint "
    f"(RUN_DIR/{CHECKPOINTS_FOLDER}/step-NNNNNNNN), or a run folder."
)


@dataclass(frozen=True)
class Continuation:
    """Checkpoint that a run starts from, as described in its manifest, and what the run takes from it."""

    manifest: CheckpointManifest | None = None
    """None if there is no checkpoint and weights are drawn."""
    place: str = ""
    """Its folder, or its URL in object storage."""
    key: Literal["", "init.from", "fork.from"] = ""
    """The setting that names it; empty for the run's own newest checkpoint."""
    takes: Literal["weights", "weights and moments", "everything"] = "everything"
    """With "everything" the run continues at the checkpoint's step; otherwise it starts at step 0."""
    is_copy: bool = False
    """Whether the run's own newest checkpoint is in `checkpoint.copy_to`, and its folder has none."""
    run_dir: str = ""
    """The folder of the run, if it is resumed; not that of the settings while `toolkit doctor` tries its steps."""
    notes: tuple[str, ...] = ()
    """Notes on the choice, a line each."""

    @property
    def is_own(self) -> bool:
        """Return whether the run is resumed."""
        return self.manifest is not None and not self.key

    @property
    def before(self) -> CheckpointManifest | None:
        """Manifest of the checkpoint with the run's steps so far, its own or those before a fork."""
        return self.manifest if self.takes == "everything" else None

    @property
    def step(self) -> int:
        """Number of updates that the run has made."""
        return 0 if self.before is None else self.before.step

    def hashes(self) -> dict[str, str]:
        """Hash of the run's first weights, in the form of `RunCorpora.hashes`; empty for random weights."""
        if self.manifest is None:
            return {}
        if self.key == FIRST_WEIGHTS:
            return {FIRST_WEIGHTS: self.manifest.weights_sha256}
        return {key: found for key, found in self.manifest.corpora.items() if key == FIRST_WEIGHTS}

    def _with_first_weights(self, corpora: dict[str, str], settings: RunSettings) -> dict[str, str]:
        """Hashes of corpora and first weights; if `init.from` now names another place, of the weights there."""
        saved = None if self.manifest is None else (self.manifest.settings.get("init") or {}).get("from")
        if (init := settings.init) is not None and init.source != saved:
            return corpora | hashes_of_first_weights(init.source)
        return corpora | self.hashes()

    def keep_choices(self, run: DeclaredRun) -> DeclaredRun:
        """The run, with settings that it leaves open filled in from the choices made at its start."""
        if self.before is not None:
            return replace(with_choices(run, self.before.settings), before=self.before.layout)
        if (init := run.settings.init) is None or self.manifest is None:
            return run
        init = init.model_copy(update={"source": self.place})
        return replace(run, settings=run.settings.model_copy(update={"init": init}))

    def check(self, run: DeclaredRun, corpora: RunCorpora) -> None:
        """Refuse a completed run or corpora that do not match the checkpoint; messages name every key that differs."""
        settings, manifest = run.settings, self.manifest
        if manifest is None:
            return
        if self.is_own:
            if self.run_dir:
                run_settings = settings.run.model_copy(update={"dir": self.run_dir})
                settings = settings.model_copy(update={"run": run_settings})
            check_resumable(manifest, settings)
            try:
                hashes = self._with_first_weights(corpora.hashes(), settings)
                check_same_run(manifest.settings, settings, corpora=(manifest.corpora, hashes))
            except SettingsError as error:
                if not self.is_copy:
                    raise
                hint = f"Its checkpoint is {self.place}: give a new run another checkpoint.copy_to."
                raise SettingsError(f"{error}\n{hint}") from None
            check_same_corpora(manifest.corpora, corpora.hashes())
            return
        first, fork, named = settings.first_weights, settings.fork, corpora.first
        assert first is not None
        if fork is not None and manifest.step != fork.step:
            raise CheckpointError(
                f"fork.from={fork.source} is of step {manifest.step:,}, and fork.step={fork.step}.\nMake them equal."
            )
        ours, theirs = named.corpus.fingerprint, manifest.vocabulary.fingerprint
        if ours != theirs:
            raise SettingsError(
                f"{named.key} ({named.corpus.place}) and {first.key} ({first.source}) have different tokenizers: "
                f"fingerprints {ours[:12]} and {theirs[:12]}.\nPreprocess the texts with the model's tokenizer: "
                f"toolkit preprocess ... --tokenizer {quoted(first.source)}."
            )
        check_same_model(settings, manifest)
        if fork is None:
            return
        there = Course.of(saved_settings(manifest), manifest.corpora)
        hashes = self._with_first_weights(corpora.hashes(manifest.corpora), settings)
        found = parting(there, Course(run, hashes))
        if found.step < fork.step:
            raise SettingsError(
                f"fork.from={fork.source}: its run and this one part at step {found.step:,}, before "
                f"{fork.step:,}:\n  "
                + "\n  ".join(found.reasons)
                + "\nMake these equal, or leave that run at an earlier step. Phases from there on may have "
                'objectives, data, rows and a learning rate of their own (lr = "rewarm", in a tail under '
                f'[branch]). Anything else is a new run: init.from = "{fork.source}", init.optimizer = "keep".'
            )

    def describe(self, settings: RunSettings) -> str:
        """Where the run starts or resumes, in one line."""
        manifest, init = self.manifest, settings.init
        if manifest is None:
            return f"starting from random weights, seed {settings.run.seed}"
        if self.is_own:
            ignored = "" if init is None else f"; init.from ({init.source}) is not read again"
            return f"resuming from step {self.step} in {self.place if self.is_copy else settings.run.dir}{ignored}"
        origin = f", from {manifest.first_weights}" if manifest.first_weights else ""
        rope = [] if self.before else rope_differences(settings, manifest)
        return "".join(
            [
                f"{'forking' if self.before else 'starting'} from {self.place} (step {manifest.step:,}{origin})",
                f", {growth.describe()}" if (growth := self.growth(settings)) else "",
                ", with a new optimizer" if self.takes == "weights" else ", with its optimizer",
                f"; trained with other rotary embeddings: {', '.join(rope)}" if rope else "",
            ]
        )

    def growth(self, settings: RunSettings) -> Growth | None:
        """Growth from the checkpoint's model to the run's; None if the run does not start from a smaller model."""
        if self.manifest is None or self.before is not None or settings.init is None or settings.init.grow is None:
            return None
        return growth_of(settings, self.manifest)

    def origin(self, settings: RunSettings) -> dict[str, str]:
        """Source of the weights before the run's first step, for its manifests; empty for random weights.

        An imported model is named as in its import, a run by its own name, wherever its checkpoint is now.
        """
        manifest, init = self.manifest, settings.init
        if manifest is None:
            return {}
        # A fork has the origin of its parent, since the two are one run up to there.
        if self.takes == "everything" or init is None:
            return manifest.origin
        grown = {"grown": growth.describe()} if (growth := self.growth(settings)) else {}
        run = manifest.settings.get("run")
        if run is None and manifest.origin:
            return manifest.origin | grown
        name = (Path(run["dir"]).name if isinstance(run, dict) else "") or Path(self.place).absolute().name
        merged = {"merged": str(len(manifest.merged))} if manifest.merged else {}
        before = {key: value for key, value in manifest.origin.items() if key != "merged"}
        return before | {"run": name, "step": str(manifest.step)} | merged | grown

    def open(self) -> Checkpoint | None:
        """Its checkpoint on this machine; one in object storage is downloaded by the first process that asks."""
        if self.manifest is None:
            return None
        folder = _remote(self.place).cached() if is_url(self.place) else Path(self.place)
        return Checkpoint(folder, self.manifest)

    def hashed(self, folder: RunFolder) -> "Continuation":
        """The same with every file hashed; or another checkpoint of the run: an older one if the newest is damaged, a
        later one if an ending process of the run has saved it meanwhile. Copies are downloaded to the run folder.
        """
        if self.is_copy:
            print(f"downloading the checkpoint {self.place} into the run folder", flush=True)
            _remote(self.place).download(folder.checkpoint(self.step))
        is_here = self.is_copy or not self.is_own
        newest, damage = newest_intact(folder.checkpoints if is_here else Path(self.place).parent)
        if newest is None and damage:
            raise folder.no_intact_checkpoint(damage)
        print("".join(f"{message}\n" for message in damage), end="", flush=True)
        if newest is not None:
            return Continuation(newest.manifest, str(newest.path), run_dir=self.run_dir)
        if (checkpoint := self.open()) is not None:
            checkpoint.verify()
        return self

    def write(self, folder: RunFolder) -> None:
        """Write it into the run folder, for the ranks."""
        folder.write_json(folder.continuation_file, {"place": self.place, "key": self.key, "takes": self.takes})


def with_choices(run: DeclaredRun, saved: Mapping[str, Any]) -> DeclaredRun:
    """The run, with settings that it leaves open filled in from `saved`, which has the choices made at its start."""
    settings, model, init = run.settings, run.settings.model, run.settings.init
    if model.vocab_size is None:
        model = model.model_copy(update={"vocab_size": saved.get("model", {}).get("vocab_size")})
    if init is not None:
        # If init.from is a folder of checkpoints: the one that the run was started from.
        before = (saved.get("init") or {}).get("from", init.source)
        if Path(before).parent in (Path(init.source) / CHECKPOINTS_FOLDER, Path(init.source)):
            init = init.model_copy(update={"source": before})
    update = {"model": model, "init": init, "precision": settings.precision or saved.get("precision")}
    return replace(run, settings=settings.model_copy(update=update))


def read_continuation(folder: RunFolder) -> Continuation:
    """Read back what `Continuation.write` wrote."""
    written = folder.read_json(folder.continuation_file)
    place = written["place"]
    if not place:
        return Continuation()
    return Continuation(_remote(place).manifest if is_url(place) else read_manifest(Path(place)), **written)


def find_continuation(run: DeclaredRun) -> Continuation:
    """Find what a run continues from; an error if all its checkpoints are damaged, or the one that it starts with is
    missing. Files are not hashed.
    """
    settings, fork, init = run.settings, run.settings.fork, run.settings.init
    if (own := from_own(run.folder, settings.checkpoint.copy_to)) is not None:
        return own
    if fork is not None:
        try:
            return Continuation(read_manifest(Path(fork.source)), fork.source, "fork.from")
        except CheckpointError as error:
            raise CheckpointError(
                f"fork.from={fork.source}, which a fork needs until it has a checkpoint of its own: {error}"
            ) from None
    if init is None:
        return Continuation()
    return from_first_weights(init.source, "weights and moments" if init.optimizer == "keep" else "weights")


def from_own(folder: RunFolder, copy_to: str | None) -> Continuation | None:
    """Continuation from the run's own newest checkpoint: in its folder, else in `checkpoint.copy_to`."""
    own = str(folder.path)
    # Read even if the run folder has a checkpoint, so that problems there are reported now.
    copied = None if copy_to is None else RemoteCheckpoint.newest(copy_to)
    try:
        newest = newest_whole(folder.checkpoints)
    except CheckpointError as error:
        raise folder.no_intact_checkpoint([str(error)]) from None
    if newest is None:
        return None if copied is None else Continuation(copied.manifest, copied.url, is_copy=True, run_dir=own)
    step, notes = newest.manifest.step, tuple[str, ...]()
    if copied is not None and copied.manifest.step > step:
        notes = (
            f"step {step:,} of the run folder comes before {copied.url}, although that is later: move the checkpoints "
            "of the run folder elsewhere to resume from the copy",
        )
    return Continuation(newest.manifest, str(newest.path), notes=notes, run_dir=own)


def from_first_weights(source: str, takes: Literal["weights", "weights and moments"] = "weights") -> Continuation:
    """Continuation from the checkpoint that `init.from` names."""
    if is_url(source) and (remote := RemoteCheckpoint.newest(source)) is not None:
        return Continuation(remote.manifest, remote.url, "init.from", takes)
    path = Path(source)
    if (path / MANIFEST_NAME).is_file():
        return Continuation(read_manifest(path), source, "init.from", takes)
    newest = newest_whole(path / CHECKPOINTS_FOLDER) or newest_whole(path)
    if newest is None:
        what = "holds no checkpoint" if path.is_dir() or is_url(source) else "is not a directory"
        hints = import_hint(path) + home_hint(source)
        raise CheckpointError(f"init.from={source} {what}.{hints}\n{WHAT_TO_GIVE}")
    return Continuation(newest.manifest, str(newest.path), "init.from", takes)


def _remote(url: str) -> RemoteCheckpoint:
    if (found := RemoteCheckpoint.newest(url)) is None:
        raise CheckpointError(f"{url} was there when the run was resolved, and is there no more. Start the run again.")
    return found


def hashes_of_first_weights(source: str) -> dict[str, str]:
    """Hash of the weights that `init.from` names now, in the form of `RunCorpora.hashes`; empty if absent."""
    try:
        return from_first_weights(source).hashes()
    except UserError:
        return {}
