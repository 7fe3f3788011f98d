"""Start of a run: from random weights, from those of `[init]`, from another run's checkpoint that `[fork]` names, or
from its own newest one.

An init.from with several checkpoints means the newest at the start; RUN_DIR/run.toml names that one. Once the run has a
checkpoint of its own, init.from and fork.from are not read again.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.checkpoint.folders import CHECKPOINTS_FOLDER, step_folders
from toolkit.checkpoint.manifest import MANIFEST_NAME, CheckpointManifest, read_manifest
from toolkit.core.errors import CheckpointError, SettingsError
from toolkit.core.text import home_hint, quoted
from toolkit.model.config import ModelSettings
from toolkit.remote import is_url
from toolkit.run.corpora import RunCorpora
from toolkit.run.declared import DeclaredRun
from toolkit.run.folder import RunFolder, newest_manifest
from toolkit.run.identity import (
    check_resumable,
    check_same_corpora,
    check_same_model,
    check_same_run,
    growth_of,
    rope_differences,
    saved_settings,
)
from toolkit.run.parting import Course, parting
from toolkit.run.remote_checkpoints import RemoteCheckpoint
from toolkit.run.settings import RunSettings
from toolkit.run.step_plan import StepPlan

_WHAT_TO_GIVE = (
    "Give a folder that `toolkit convert --from-hf` wrote, a checkpoint "
    f"(RUN_DIR/{CHECKPOINTS_FOLDER}/step-NNNNNNNN), or a run folder."
)


@dataclass(frozen=True)
class Start:
    """The checkpoint that a run starts from, as its manifest describes it; its other files are not looked at."""

    own: CheckpointManifest | None = None
    """The run's own newest one, from which it is resumed."""
    initial: CheckpointManifest | None = None
    """That of `init.from` or `fork.from`, for a run without one of its own. With neither, weights are random."""
    remote: RemoteCheckpoint | None = None
    """Where that is in object storage; `own` is in `checkpoint.copy_to` then, and not in the run folder."""
    copied: RemoteCheckpoint | None = None
    """The newest copy in `checkpoint.copy_to` of a run whose folder has `own`."""

    def gone_on_from(self, settings: RunSettings) -> CheckpointManifest | None:
        """The checkpoint of the same run, or of one that a fork takes its first steps over from."""
        return self.own or (None if settings.fork is None else self.initial)

    def keep_choices(self, run: DeclaredRun) -> DeclaredRun:
        """The run with what is chosen when it is started, where its settings leave it open."""
        settings = run.settings
        if (init := settings.init) is not None:
            init = init.model_copy(update={"source": self._checkpoint_at(init.source, settings)})
            settings = settings.model_copy(update={"init": init})
        if (gone_on_from := self.gone_on_from(settings)) is None:
            return replace(run, settings=settings)
        before, model = gone_on_from.settings, settings.model
        if model.vocab_size is None:
            model = model.model_copy(update={"vocab_size": before.get("model", {}).get("vocab_size")})
        precision = before.get("precision") if settings.precision is None else settings.precision
        return replace(run, settings=settings.model_copy(update={"model": model, "precision": precision}))

    def _checkpoint_at(self, source: str, settings: RunSettings) -> str:
        """The checkpoint of a folder with several that the run was started from, or that is now the newest."""
        roots = (Path(source) / CHECKPOINTS_FOLDER, Path(source))
        if self.own is None and self.remote is not None:
            return self.remote.url
        if (gone_on_from := self.gone_on_from(settings)) is not None:
            before = (gone_on_from.settings.get("init") or {}).get("from", source)
            return before if Path(before).parent in roots else source
        if self.initial is None or (Path(source) / MANIFEST_NAME).is_file():
            return source
        return next(str(path) for root in roots for step, path in step_folders(root) if step == self.initial.step)

    def check(self, run: DeclaredRun, corpora: RunCorpora) -> None:
        """Refuse a run, completed, and corpora that do not fit it; messages name every key that differs."""
        settings = run.settings
        if self.own is not None:
            check_resumable(self.own, settings)
            try:
                check_same_run(self.own.settings, settings)
            except SettingsError as error:
                if self.remote is None:
                    raise
                hint = f"Its checkpoint is {self.remote.url}: give a new run another checkpoint.copy_to."
                raise SettingsError(f"{error}\n{hint}") from None
            check_same_corpora(self.own.corpora, corpora.hashes())
        first = settings.first_weights
        if self.initial is None or first is None:
            return
        fork, key, corpus = settings.fork, corpora.first.key, corpora.first.corpus
        if fork is not None and self.initial.step != fork.step:
            raise CheckpointError(
                f"fork.from={fork.source} is of step {self.initial.step:,}, and fork.step={fork.step}.\n"
                "Make them equal."
            )
        theirs = self.initial.vocabulary.fingerprint
        if corpus.fingerprint != theirs:
            raise SettingsError(
                f"{key} ({corpus.place}) and {first.key} ({first.source}) have different tokenizers: fingerprints "
                f"{corpus.fingerprint[:12]} and {theirs[:12]}.\n"
                "Preprocess the texts with the model's tokenizer: "
                f"toolkit preprocess ... --tokenizer {quoted(first.source)}."
            )
        check_same_model(settings, self.initial)
        if fork is not None:
            saved = saved_settings(self.initial)
            there = Course(DeclaredRun(saved, StepPlan(saved)), self.initial.corpora)
            found = parting(there, Course(run, corpora.hashes(self.initial.corpora)))
            if found.step < fork.step:
                raise SettingsError(
                    f"fork.from={fork.source}: its run and this one part at step {found.step:,}, before "
                    f"{fork.step:,}:\n  "
                    + "\n  ".join(found.reasons)
                    + "\nMake these equal, or leave that run at an earlier step. Phases from there on may have "
                    'objectives, data, rows and a learning rate of their own (lr = "rewarm", in a tail under '
                    f'[branch]). Anything else is a new run: init.from = "{fork.source}", init.optimizer = "keep".'
                )

    def later_copy(self) -> list[str]:
        """A line where `checkpoint.copy_to` has a later step than the run folder, which comes first all the same."""
        if self.own is None or self.copied is None or self.copied.manifest.step <= self.own.step:
            return []
        return [
            f"step {self.own.step:,} of the run folder comes before {self.copied.url}, although that is later: move "
            "the checkpoints of the run folder elsewhere to resume from the copy"
        ]

    def describe(self, settings: RunSettings) -> str:
        """Start of the run in one line."""
        if self.own is not None:
            ignored = "" if settings.init is None else f"; init.from ({settings.init.source}) is not read again"
            place = settings.run.dir if self.remote is None else self.remote.url
            return f"resumes from step {self.own.step:,} in {place}{ignored}"
        first = settings.first_weights
        if self.initial is None or first is None:
            return f"starts from random weights, seed {settings.run.seed}"
        kept = "kept" if first.optimizer == "keep" else "new"
        origin = f", from {self.initial.first_weights}" if self.initial.first_weights else ""
        rope = "".join(f"; {line}" for line in rope_differences(settings, self.initial))
        grown = "" if first.grow is None else f"; {growth_of(settings, self.initial).describe()}"
        verb = "starts" if settings.fork is None else "forks"
        return f"{verb} from {first.source} (step {self.initial.step:,}{origin}); the optimizer is {kept}{grown}{rope}"


def find_start(run: DeclaredRun) -> Start:
    """Start of a run: refused where all its checkpoints are damaged, or the one that it begins with is not there."""
    try:
        own = run.folder.newest_manifest()
    except CheckpointError as error:
        raise run.folder.no_intact_checkpoint([str(error)]) from None
    first, copy_to = run.settings.first_weights, run.settings.checkpoint.copy_to
    # Looked into although the run may have one of its own: what is wrong there is told now.
    copied = None if copy_to is None else RemoteCheckpoint.newest(copy_to)
    if own is None and copied is not None:
        return Start(copied.manifest, remote=copied)
    if own is not None or first is None:
        return Start(own, copied=copied)
    if run.settings.fork is not None:
        try:
            return Start(initial=read_manifest(Path(first.source)))
        except CheckpointError as error:
            raise CheckpointError(
                f"fork.from={first.source}, which a fork needs until it has a checkpoint of its own: {error}"
            ) from None
    return _initial(first.source)


def _initial(source: str) -> Start:
    """Start with the checkpoint that `init.from` names."""
    if is_url(source) and (remote := RemoteCheckpoint.newest(source)) is not None:
        return Start(initial=remote.manifest, remote=remote)
    path = Path(source)
    if (path / MANIFEST_NAME).is_file():
        return Start(initial=read_manifest(path))
    newest = RunFolder(path).newest_manifest() or newest_manifest(path)
    if newest is None:
        what = "holds no checkpoint" if path.is_dir() or is_url(source) else "is not a directory"
        hint = (
            f" It is a Hugging Face model; import it first: toolkit convert --from-hf {quoted(source)} OUT."
            if (path / "config.json").is_file()
            else ""
        )
        raise CheckpointError(f"init.from={source} {what}.{hint}{home_hint(source)}\n{_WHAT_TO_GIVE}")
    return Start(initial=newest)


def fill_model_from_checkpoint(raw: dict[str, Any]) -> None:
    """Fill in what `[model]` leaves out from the model that `init.from` names; keys that are given win.

    Defaults would not do even where every size is given: rotary angles are not part of the weights' shapes, so other
    ones would be another model without any sign of it.
    """
    init, run, saved = raw.get("init"), raw.get("run"), raw.get("checkpoint")
    given = raw.get("model", {})
    if not isinstance(init, dict) or not isinstance(given, dict) or "from" not in init:
        return
    source = init["from"]
    if not isinstance(source, str) or not source:
        raise SettingsError(f"invalid value for init.from: got {source!r}. {_WHAT_TO_GIVE}")
    folder = run.get("dir") if isinstance(run, dict) else None
    url = saved.get("copy_to") if isinstance(saved, dict) else None
    try:
        own = RunFolder(folder).newest_manifest() if isinstance(folder, str) else None
        if own is None and isinstance(url, str) and url and (copied := RemoteCheckpoint.newest(url)) is not None:
            own = copied.manifest
        manifest = own or _initial(source).initial
    except CheckpointError:
        required = {name for name, field in ModelSettings.model_fields.items() if field.is_required()}
        if required <= given.keys():
            # The settings can be looked at without the weights; the run itself asks for them again.
            return
        raise
    assert manifest is not None
    # A run goes on with its own [model]; what its phases have otherwise they say themselves.
    model = (manifest.settings.get("model") or {}) if own else manifest.table("model")
    if not model:
        raise CheckpointError(
            f"init.from={source}: the manifest there does not describe a model. Give another checkpoint, or the shape "
            "in [model]."
        )
    raw["model"] = {key: value for key, value in model.items() if value is not None} | given
